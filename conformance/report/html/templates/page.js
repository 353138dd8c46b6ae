"use strict";
// The page is readable without this script, which adds filters, with their state in the address, and copy buttons.

const form = document.querySelector(".controls");
const cases = [...document.querySelectorAll("[data-name]")];
const fields = form ? [...form.elements].filter((field) => field.name) : [];

// The fragment of the address is `#target&name=value&…`: an anchor, filters, or both.
function address() {
  const parts = location.hash.slice(1).split("&").filter(Boolean);
  const filters = new URLSearchParams(parts.filter((part) => part.includes("=")).join("&"));
  return { target: parts.find((part) => !part.includes("=")) || "", filters };
}

function chosen() {
  return new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value]));
}

function fits(element) {
  return fields.every(({ name, value }) => {
    const own = element.dataset[name];
    return !value || (name === "name" ? own.toLowerCase().includes(value.toLowerCase()) : own === value);
  });
}

function apply() {
  for (const element of cases) element.hidden = !fits(element);
  const left = cases.filter((element) => !element.hidden);
  for (const row of document.querySelectorAll("tr:has(a[href^='#'])")) {
    row.hidden = [...row.querySelectorAll("a")].every((link) => document.getElementById(link.hash.slice(1)).hidden);
  }
  form.querySelector("output").value = left.length < cases.length ? `${left.length || "none"} of ${cases.length} shown` : "";
}

function remember() {
  history.replaceState(null, "", `#${chosen()}`);
  apply();
}

function follow() {
  const { target, filters } = address();
  const element = target && document.getElementById(target);
  if (form && (filters.size || !element)) {
    for (const field of fields) field.value = filters.get(field.name) || "";
    apply();
  }
  if (!element) return;
  const hidden = element.closest("[data-name][hidden]");
  if (hidden) {
    form.reset();
    apply();
  }
  for (let box = element.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  element.scrollIntoView();
}

if (form) {
  form.hidden = false;
  form.addEventListener("input", remember);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(remember));
}
// Unfold all details for printing, and fold them again afterwards.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const box of folded) box.open = true;
});
addEventListener("afterprint", () => {
  for (const box of folded) box.open = false;
});

addEventListener("hashchange", follow);
if (location.hash) follow();

if (navigator.clipboard || document.execCommand) {
  for (const code of document.querySelectorAll("pre > code")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      button.textContent = (await copied(code)) ? "Copied" : "Select it and copy";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    code.parentElement.prepend(button);
  }
}

// Some browsers do not treat a page opened from a file as a secure context; fall back to the older copy command there.
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(code);
    const done = document.execCommand("copy");
    getSelection().removeAllRanges();
    return done;
  }
}
