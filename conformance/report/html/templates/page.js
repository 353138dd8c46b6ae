"use strict";
// Nothing here is needed to read the page: filters whose state lives in the address, and buttons that copy.

const form = document.querySelector(".controls");
const cases = [...document.querySelectorAll("[data-name]")];
const fields = form ? [...form.elements].filter((field) => field.name) : [];

// The address's fragment is `#target&name=value&…`: an anchor, filters, or both.
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
// What is folded is printed too.
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

// A page from a file is no secure context everywhere, so the old way is kept behind the new one.
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
