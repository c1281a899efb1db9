// The search would exclude pages with "-word". This removes hyphens before a word, so that the search finds --dtype.
document.addEventListener("input", ({ target }) => {
  if (target.matches(".md-search__input")) target.value = target.value.replace(/(^|\s)-+/g, "$1");
}, true);
