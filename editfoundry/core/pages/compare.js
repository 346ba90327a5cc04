"use strict";
// Fills in images near the viewport from the page's store, and runs every before/after slider.
(() => {
  const images = JSON.parse(document.getElementById("images").textContent);

  const fill = (image) => {
    image.src = images[image.dataset.image];
    image.removeAttribute("data-image");
  };
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      fill(entry.target);
    }
  }, { rootMargin: "800px 0px" });
  for (const image of document.querySelectorAll("img[data-image]")) {
    if (image.dataset.image in images) observer.observe(image);
  }

  const moveTo = (compare, at) => {
    compare.querySelector(".compare-range").value = at;
    compare.querySelector(".compare-stage").style.setProperty("--at", `${at}%`);
  };
  document.addEventListener("input", (event) => {
    if (event.target.matches(".compare-range")) moveTo(event.target.closest(".compare"), event.target.value);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".compare-bar button");
    if (!button) return;
    const compare = button.closest(".compare");
    if (button.dataset.at !== undefined) {
      moveTo(compare, button.dataset.at);
    } else {
      const shown = compare.classList.toggle("shows-mask");
      button.setAttribute("aria-pressed", String(shown));
    }
  });
})();
