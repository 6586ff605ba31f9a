#!/usr/bin/env bash
# make docs: writes the generated parts of docs/reference/ from a server's answers. Builds the book in target/book.
# shellcheck source=tests/scripts/lib.sh
. "$(dirname "$0")/lib.sh"
. tests/scripts/toolchain.sh
. tests/scripts/servers.sh
. tests/scripts/extension.sh
. tests/scripts/e2e.sh
. tests/scripts/pictures.sh

say "Setting up"
need_rust
need_c_toolchain
need_cargo_pgrx
need_mdbook
need_any_server

say "Writing the reference as PostgreSQL $CHOSEN answers"
install_extension "$CHOSEN_PG_CONFIG" dev
(PG_ONCE_WRITE_DOCS=1 run_e2e "$CHOSEN_PG_CONFIG" "$CHOSEN_PG_CONFIG" --test reference)

say "Building the book"
# mdBook reads pages below one folder only. So the pages and the files that they link to are copied, with their paths.
copy=$ROOT/target/book-src
rm -rf "$copy" "$ROOT/target/book"
mkdir -p "$copy/src"
cp docs/book.toml docs/mermaid.js "$copy/"
cp -r --parents README.md CHANGELOG.md CONTRIBUTING.md LICENSE docs sql client/examples tests/demo/*.png tests/e2e/faults \
    "$copy/src/"
cd "$copy/src"
find . \( -name node_modules -o -name __pycache__ \) -prune -exec rm -rf {} +
while IFS=: read -r page link; do
    [ -e "$(dirname "$page")/$link" ] || die "$page links to $link, which is not copied into the book; add it in tests/scripts/docs.sh"
done < <(grep -roP --include='*.md' '\]\(\K[^)#:]+(?=[)#])' .)
sed -e 's,](\.\./,](,' -e t -e 's,](,](docs/,' docs/SUMMARY.md >SUMMARY.md
# Adds the copied pages that the table of contents does not name.
others=$(find . -name '*.md' ! -path ./SUMMARY.md | sed 's,^\./,,' | sort)
printf '\n# Files\n\n' >>SUMMARY.md
while read -r page; do
    grep -qF "]($page)" SUMMARY.md || printf -- '- [%s](%s)\n' "$page" "$page" >>SUMMARY.md
done <<<"$others"
cd "$ROOT"
if need_mermaid; then
    cp "$MERMAID" "$copy/"
    export MDBOOK_OUTPUT__HTML__ADDITIONAL_JS='["mermaid.tiny.js", "mermaid.js"]'
else
    note "npm is missing, so pictures stay text: sudo apt-get install npm"
fi
"$TOOLS/bin/mdbook" build "$copy" --dest-dir "$ROOT/target/book"
note "the book: target/book/index.html"
