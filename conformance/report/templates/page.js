"use strict";
// The page is readable without this script, which unfolds what a link leads to and what is printed, and adds copy buttons.

function follow() {
  const element = document.getElementById(location.hash.slice(1));
  for (let box = element && element.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  if (element) element.scrollIntoView();
}

addEventListener("hashchange", follow);
if (location.hash) follow();

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const box of folded) box.open = true;
});
addEventListener("afterprint", () => {
  for (const box of folded) box.open = false;
});

// Some browsers do not treat a page opened from a file as a secure context; its text is then selected, to be copied by hand.
for (const code of document.querySelectorAll("pre > code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  code.parentElement.prepend(button);
}
