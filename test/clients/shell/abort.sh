#!/bin/bash
# Sends requests as they are told on standard input, METHOD PATH MILLISECONDS [JSON], and breaks each off so long after it was
# sent. Writes the status of an answer that came before that, or 0.
set -euo pipefail

while read -r method path milliseconds json; do
  curl -s -o /dev/null -w '%{http_code}\n' --max-time "$(printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000)))" \
    -X "$method" -H "X-API-Key: $CAPSULE_API_KEY" -H 'Content-Type: application/json' --data-binary "${json:-}" \
    "$CAPSULE_URL$path" || true
done
