// The keyboard scrolls a table that is wider than its page: the theme lets it scroll blocks of code alone.
document$.subscribe(() =>
  setTimeout(() => {
    for (const each of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
    }
  }),
);
