// Draws the pictures of a page in the colors that the reader has chosen.
if (window.mermaid) {
  const chosen = document.body.dataset.theme;
  const dark = chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: dark ? "dark" : "neutral" });
  addEventListener("load", async () => {
    await mermaid.run();
    for (const picture of document.querySelectorAll("pre.mermaid svg")) {
      // A picture that would become too small to read scrolls instead.
      picture.style.minWidth = `${Math.round(picture.viewBox.baseVal.width * 0.6)}px`;
    }
  });
}
