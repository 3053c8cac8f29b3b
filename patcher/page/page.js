"use strict";
// Filter and sort the tables. All that is shown stands in the page itself: without a script nothing is missing.
const words = new Intl.Collator("en", { numeric: true });
const compared = (one, other, at) => {
  const [a, b] = [one.cells[at], other.cells[at]];
  return "value" in a.dataset && "value" in b.dataset
    ? a.dataset.value - b.dataset.value : words.compare(a.textContent, b.textContent);
};

for (const box of document.querySelectorAll("input[type=search]")) {
  const table = box.closest("section").querySelector("table");
  const rows = [...table.tBodies[0].rows];
  const count = box.parentElement.querySelector("output");
  box.addEventListener("input", () => {
    const typed = box.value.toLowerCase().split(" ").filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !typed.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = typed.length ? count.dataset.shown.replace("{0}", shown) : "";
  });
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const body = head.closest("table").tBodies[0];
    const at = head.cellIndex;
    const next = head.ariaSort === "descending" || head.dataset.first === "ascending" && head.ariaSort !== "ascending"
      ? "ascending" : "descending";
    for (const other of head.parentElement.cells) other.ariaSort = null;
    head.ariaSort = next;
    const sign = next === "ascending" ? 1 : -1;
    const rows = [...body.rows].sort((a, b) => sign * compared(a, b, at));
    body.append(...rows);
  });
}
