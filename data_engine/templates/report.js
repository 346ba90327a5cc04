"use strict";
// Filters, search and order of the gallery.
(() => {
  const form = document.querySelector(".controls");
  const list = document.getElementById("cards");
  const cards = [...list.children];
  const shown = document.querySelector("#shown b");
  const texts = new Map(cards.map((card) => [card, card.dataset.text.toLowerCase()]));

  const matches = (card, wanted, words) =>
    ["type", "kind", "origin", "split"].every(
      (name) => wanted[name] === "" || card.dataset[name].split(" ").includes(wanted[name])) &&
    words.every((word) => texts.get(card).includes(word));

  const apply = () => {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const card of cards) {
      card.hidden = !matches(card, wanted, words);
      count += card.hidden ? 0 : 1;
    }
    shown.textContent = count.toLocaleString("en");
    document.getElementById("nothing").hidden = count > 0;
  };

  const arrange = () => {
    const by = form.elements.order.value;
    list.classList.toggle("by-worst", by === "worst");
    const place = (card) => Number(card.dataset[by]);
    list.append(...cards.toSorted((a, b) => place(a) - place(b) || a.dataset.order - b.dataset.order));
  };

  const toggle = (id, act) => {
    const button = document.getElementById(id);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      act(on);
    });
  };

  form.addEventListener("input", (event) => {
    if (event.target.name === "order") arrange();
    else apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  toggle("all-masks", (on) => {
    for (const button of list.querySelectorAll(".compare-toggle")) {
      if ((button.getAttribute("aria-pressed") === "true") !== on) button.click();
    }
  });
  toggle("large", (on) => list.classList.toggle("large", on));
  toggle("all-details", (on) => {
    for (const details of list.querySelectorAll(".more")) details.open = on;
  });
})();
