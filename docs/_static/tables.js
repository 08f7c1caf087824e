// Marks tables with sentences in their cells, whose rows phone.css stacks on narrow screens, under their headings.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const headings = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
    const rows = [...table.querySelectorAll("tbody tr")].map((row) => [...row.cells]);
    const longest = Math.max(0, ...rows.flat().map((cell) => cell.textContent.trim().length));
    if (headings.length < 2 || longest < 30) continue;
    table.classList.add("stacked");
    for (const cells of rows) {
      cells.forEach((cell, k) => {
        cell.classList.toggle("empty", !cell.textContent.trim());
        if (k && headings[k]) cell.dataset.heading = headings[k];
      });
    }
  }
});
