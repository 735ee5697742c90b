#!/bin/sh
# Makes received files a bundle, points the link to it, and deletes old versions that no job can be using. The caller sets
# STORE, ATTEMPT, LINK, DIGEST, CONFIG (content of the file CONFIG_NAME) and what delete_unused needs.
set -eu
new="$STORE/.new.$ATTEMPT"
if [ -d "$new" ]; then
  printf '%s\n' "$CONFIG" >"$new/$CONFIG_NAME"
  # Another attempt with the same image may have been faster.
  if [ -d "$STORE/$DIGEST" ]; then rm -rf "$new"; else mv -T "$new" "$STORE/$DIGEST"; fi
fi
touch "$STORE/$DIGEST"
# The name is the attempt's own: another attempt may publish at the same time. Any name next to the link could be an image's.
ln -sfn ".${LINK##*/}/$DIGEST" "$new.link"
mv -fT "$new.link" "$LINK"
touch "$STORE/$DIGEST"
delete_unused
