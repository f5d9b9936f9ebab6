// Puts the pages that readers want first: guides before explanations, contracts and the reference. Within a group, a page whose title or
// description has the words comes before one that only mentions them, and one that mentions them often before others. A name as it is
// written in code leads to its object.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const query = (new URLSearchParams(location.search).get("q") || "").trim();
    const page = PAGES[docname] || { rank: 4, description: "", page: "" };
    if (kind === "object") {
      const isName = /[A-Z_.]/.test(query) && (title === query || title.endsWith(`.${query}`));
      return isName ? 10000 + (/^Python (class|function|exception)/.test(descr) ? score : 0) : score - 1000;
    }
    const words = query.toLowerCase().split(/[^\p{Letter}\p{Number}_]+/u).filter((word) => word.length > 2);
    const stems = words.map((word) => (word.length > 4 ? word.replace(/(s|ed|ing|es|al)$/, "") : word));
    const text = page.page.toLowerCase();
    const counts = stems.map((stem) => text.split(stem).length - 1);
    const isDescribed = stems.length > 0 && stems.every((stem) => page.description.toLowerCase().includes(stem));
    const often = counts.length ? Math.min(...counts) : 0;
    return (
      (4 - page.rank) * 150 + (kind === "title" && !anchor ? 90 : 0) + (isDescribed ? 45 : 0) + 14 * Math.log2(1 + Math.min(often, 63)) + score
    );
  },
};
