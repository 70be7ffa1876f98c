"use strict";
// Checks a rubric while it is written: what the server says of it takes the place of what it said before.
(() => {
  const WAIT_MS = 400;
  const form = document.querySelector("form[data-checked]");
  let timer = 0;
  let number = 0;
  const check = async () => {
    number += 1;
    const own = number;
    const body = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers: { "x-parts": "1" } });
      const text = await answer.text();
      // A later one is on its way.
      if (own !== number || !answer.ok) return;
      const part = new DOMParser().parseFromString(text, "text/html").getElementById("checks");
      if (part) document.getElementById("checks").replaceChildren(...part.childNodes);
    } catch {
      // The button checks, too.
    }
  };
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, WAIT_MS);
  });
  // Enter in a field adds nothing to it and keeps nothing half written.
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target instanceof HTMLInputElement) event.preventDefault();
  });
})();
