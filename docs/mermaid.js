// In the book: draws the blocks of language mermaid.
for (const block of document.querySelectorAll("code.language-mermaid")) {
    const picture = document.createElement("div");
    picture.className = "mermaid";
    picture.textContent = block.textContent;
    block.closest("pre").replaceWith(picture);
}
mermaid.initialize({ startOnLoad: false });
mermaid.run();
