#!/bin/bash
# What wget does with the service, one JSON line a step; suite.test.ts starts it and judges.
set -euo pipefail

body=$CLIENT_FOLDER/body
status=

say() { # STEP FIELDS
  printf '{"step":"%s",%s}\n' "$1" "$2"
}

# Of an error, wget keeps the body only when it is told to, and its status it writes among other things.
call() { # METHOD PATH [ARG…]
  wget -q -S -O "$body" -T 0 -t 1 --content-on-error --method="$1" --header="X-API-Key: ${key:-$CAPSULE_API_KEY}" "${@:3}" \
    "$CAPSULE_URL$2" 2>"$CLIENT_FOLDER/headers" || true
  status=$(sed -nE 's|^ *HTTP/1.1 ([0-9]+) .*|\1|p' "$CLIENT_FOLDER/headers" | tail -n 1)
  status=${status:-0}
}

post() { # PATH JSON|@FILE
  local source=(--body-data="$2")
  [[ $2 != @* ]] || source=(--body-file="${2#@}")
  call POST "$1" --header='Content-Type: application/json' "${source[@]}"
}

path_part() { # TARGET
  printf -- '--form\r\nContent-Disposition: form-data; name="path"\r\n\r\n%s\r\n' "$1"
}

# It has no multipart, so the form is a file.
upload() { # PATH TARGET FILE [FIRST]
  local form=$CLIENT_FOLDER/form
  {
    [[ ${4:-path} == file ]] || path_part "$2"
    printf -- '--form\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    cat "$3"
    printf '\r\n'
    [[ ${4:-path} == path ]] || path_part "$2"
    printf -- '--form--\r\n'
  } >"$form"
  call POST "$1" --header='Content-Type: multipart/form-data; boundary=form' --body-file="$form"
}

# Of the last answer, as it stands there.
field() { # NAME
  sed -nE "s/.*\"$1\":(\"(\\\\.|[^\"])*\"|[0-9]+).*/\1/p" "$body"
}

plain() { field "$1" | tr -d '"'; }
answer() { code=$(field code) && say "$1" "\"answer\":[$status,${code:-null}]"; }
hash() { sha256sum "$1" | cut -d' ' -f1; }

post /v1/capsules '{"memory_mb":256}'
id=$(plain id)
at=/v1/capsules/$id
say create "\"status\":$status"
call GET "$at?wait=running&timeout=120"
say wait "\"status\":$status,\"state\":$(field status)"

post "$at/exec" '{"cmd":"sh","args":["-c","echo out; echo err >&2; exit 3"]}'
say exec "\"exit_code\":$(field exit_code),\"stdout\":$(field stdout),\"stderr\":$(field stderr)"
post "$at/exec" '{"cmd":"printf","args":["\\377\\000\\376"]}'
say binary "\"encoding\":$(field encoding),\"bytes\":\"$(plain stdout | base64 -d | od -An -tx1 | tr -d ' \n')\""
post "$at/exec" '{"cmd":"sleep","args":["300"],"timeout":1}'
say time-out "\"status\":$status,\"code\":$(field code)"

post "$at/exec" '{"cmd":"sleep","args":["301"],"background":true}'
tag=$(plain tag)
say background "\"status\":$status"
call GET "$at/processes"
listed=false
! grep -q "\"tag\":\"$tag\"" "$body" || listed=true
say processes "\"listed\":$listed"
call DELETE "$at/processes/$tag?signal=SIGTERM"
say kill "\"status\":$status"

printf '\r\n--b\0\xff' >"$CLIENT_FOLDER/small"
upload "$at/files/write" '/root/ü ñ.txt' "$CLIENT_FOLDER/small"
say upload "\"status\":$status"
post "$at/files/read" '{"path":"/root/ü ñ.txt"}'
say read "\"status\":$status,\"bytes\":\"$(od -An -tx1 "$body" | tr -d ' \n')\""
post "$at/files/list" '{"path":"/root"}'
listed=false
! grep -q '"name":"ü ñ.txt"' "$body" || listed=true
say list "\"listed\":$listed"

upload "$at/files/write" /root/second "$CLIENT_FOLDER/small" file
second=$status
post "$at/files/read" '{"path":"/root/second"}'
say 'file first' "\"status\":$second,\"bytes\":\"$(od -An -tx1 "$body" | tr -d ' \n')\""

upload "$at/files/stream/write" /root/big "$CLIENT_FILE"
up=$status
post "$at/exec" '{"cmd":"sha256sum","args":["/root/big"],"timeout":0}'
whole=false
[[ $(field stdout) != *"$(hash "$CLIENT_FILE")"* ]] || whole=true
say 'big up' "\"status\":$up,\"whole\":$whole"
post "$at/files/stream/read" '{"path":"/root/big"}'
whole=false
[[ $(hash "$body") != "$(hash "$CLIENT_FILE")" ]] || whole=true
say 'big down' "\"status\":$status,\"whole\":$whole"

# Each is under way when it is broken off.
wget -q -O /dev/null -T 5 -t 1 --header="X-API-Key: $CAPSULE_API_KEY" --header='Content-Type: application/json' \
  --post-data='{"cmd":"sleep","args":["302"],"timeout":0}' "$CAPSULE_URL$at/exec" || true
{
  printf -- '--form\r\nContent-Disposition: form-data; name="path"\r\n\r\n/root/big\r\n'
  printf -- '--form\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
  head -c 4194304 /dev/zero
} >"$CLIENT_FOLDER/half" # a form without an end
call POST "$at/files/stream/write" --header='Content-Type: multipart/form-data; boundary=form' --body-file="$CLIENT_FOLDER/half"
timeout 5 wget -q -O /dev/null --limit-rate=256k -t 1 --header="X-API-Key: $CAPSULE_API_KEY" \
  --header='Content-Type: application/json' --post-data='{"path":"/root/big"}' "$CAPSULE_URL$at/files/stream/read" || true
say aborted "\"of\":\"requests\",\"id\":\"$id\""
read -r

key=capk_wrong call GET "$at" && answer 401
call GET /v1/capsules/cl-none && answer 404
call PUT "$at" && answer 405
post "$at/exec" '{"cmd":7}' && answer 400
post "$at/resume" '{}' && answer 409
huge=$CLIENT_FOLDER/huge
{ printf '{"cmd":"' && head -c 20971520 /dev/zero | tr '\0' x && printf '"}'; } >"$huge"
post "$at/exec" "@$huge" && answer 413
call POST "$at/exec" --header='Content-Type: text/plain' --body-data='{"cmd":"true"}' && answer 415
post /v1/capsules '{"vcpus":200}' && answer 429
lost=0
expect() { [[ $status == "$1" ]] || lost=$((lost + 1)); }
for ((count = 0; count < CLIENT_TRIES; count++)); do
  post "$at/exec" "@$huge" && expect 413
  key=capk_wrong post "$at/exec" "@$huge" && expect 401
  post /v1/nothing "@$huge" && expect 404
  for verb in write stream/write; do
    upload "/v1/capsules/cl-none/files/$verb" /root/f "$CLIENT_REFUSED" && expect 404
  done
done
say refused "\"lost\":$lost"

call POST "$at/pause"
say pause "\"status\":$status,\"state\":$(field status)"
post "$at/exec" '{"cmd":"true"}' && answer paused
upload "$at/files/write" /root/f "$CLIENT_REFUSED"
say 'refused upload' "\"status\":$status"
call POST "$at/resume"
say resume "\"status\":$status,\"state\":$(field status)"
post /v1/snapshots "{\"sandbox_id\":\"$id\",\"name\":\"client-$CLIENT_NAME\"}"
say snapshot "\"status\":$status"
call DELETE "/v1/snapshots/client-$CLIENT_NAME"
say 'delete snapshot' "\"status\":$status"
call GET "$at" && answer gone
