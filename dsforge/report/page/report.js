// Buttons of the report: print, copy (theme.js has the theme). The report is complete without them.
"use strict";
{
  const live = document.getElementById("live");

  document.getElementById("print").addEventListener("click", () => print());
  const opened = [];
  addEventListener("beforeprint", () => {
    const closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
    opened.push(...closed);
  });
  addEventListener("afterprint", () => {
    for (const each of opened.splice(0)) each.open = false;
  });

  /** Put a text on the clipboard; where that is not allowed (a file, a frame), select it. */
  async function copy(button) {
    const text = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      live.textContent = "Copied";
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      live.textContent = "Selected: copy it with Ctrl+C";
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
}
