// The texts of results come from pages.js, since nothing can be fetched from file://.
window.fetch = async (address) => {
  const root = new URL(document.documentElement.dataset.content_root, location.href).href;
  const name = new URL(address, location.href).href.slice(root.length).replace(/\.html$/, "");
  return { text: async () => (PAGES[name] ? PAGES[name].page : "") };
};
