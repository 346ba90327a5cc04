"use strict";
// Filters, search and order of the pairs.
(() => {
  const form = document.querySelector(".controls");
  const list = document.getElementById("cards");
  const cards = [...list.children];
  const shown = document.querySelector("#shown b");
  const texts = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));

  const matches = (card, wanted, words) =>
    ["type", "verdict", "band"].every((name) => wanted[name] === "" || card.dataset[name] === wanted[name]) &&
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

  const places = {
    lowest: (card) => Number(card.dataset.lowest),
    highest: (card) => -Number(card.dataset.lowest),
    unsure: (card) => -Number(card.dataset.unsure),
    order: (card) => Number(card.dataset.order),
  };
  const arrange = () => {
    const place = places[form.elements.order.value];
    list.append(...cards.toSorted((a, b) => place(a) - place(b)));
  };

  form.addEventListener("input", (event) => {
    if (event.target.name === "order") arrange();
    else apply();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
})();
