# shellcheck shell=bash
# Read by ./dev and by the install of a release: messages, steps, and the installation of Debian's packages. The reader makes
# the folder $work, and ends the counter and removes the folder in a trap on EXIT.

fail() {
  echo "${0##*/}: $*" >&2
  exit 1
}

refuse() {
  echo "${0##*/}: $*" >&2
  exit 2
}

is_root() { ((EUID == 0)); }

is_here() { command -v "$1" >/dev/null; }

counter=

# A long step: one line, its duration at the end; what it says is shown only if it fails. A terminal shows the time meanwhile.
step() { # MEANING COMMAND…
  local meaning=$1 began=$SECONDS said=$work/step.$BASHPID status=0
  shift
  printf '%s … ' "$meaning" >&2
  count_seconds "$meaning"
  "$@" >"$said" 2>&1 || status=$?
  if [[ -n $counter ]]; then
    end_counter
    printf '\r%s … ' "$meaning" >&2
  fi
  if ((status == 0)); then
    echo "$((SECONDS - began)) s" >&2
  else
    echo "failed" >&2
    tail -n 40 "$said" >&2
    return 1
  fi
}

# Ends with its parent, however that ends: Ctrl-C does not reach it, since a shell starts background jobs with SIGINT ignored.
count_seconds() { # MEANING
  [[ -t 2 ]] || return 0
  local parent=$BASHPID
  (
    trap - EXIT
    began=$SECONDS
    while sleep 1 && kill -0 "$parent" 2>/dev/null; do printf '\r%s … %d s ' "$1" "$((SECONDS - began))" >&2; done
  ) &
  counter=$!
}

end_counter() {
  [[ -n $counter ]] || return 0
  kill "$counter" 2>/dev/null || true
  wait "$counter" 2>/dev/null || true
  counter=
}

# What a server needs to run; its releases bring the rest.
missing_to_serve() {
  is_here qemu-system-x86_64 || echo qemu-system-x86
  is_here qemu-img || echo qemu-utils
  is_here bwrap || echo bubblewrap
}

# Installs the packages that a function lists.
install_packages() { # LISTING
  local -a missing
  mapfile -t missing < <("$1" | tr ' ' '\n')
  ((${#missing[@]} > 0)) || return 0
  is_here apt-get || fail "this is no Debian; install what provides: ${missing[*]}"
  is_root || fail "some Debian packages are missing; run: sudo apt-get install -y --no-install-recommends ${missing[*]}"
  step "reading Debian's package lists" apt-get -q update
  if [[ " ${missing[*]} " == *" qemu-system-x86 "* ]] && has_backports; then
    install_from backports qemu-system-x86 qemu-utils || echo "taking Debian's own QEMU instead, which runs with CAPSULE_JAIL=off only" >&2
    mapfile -t missing < <("$1" | tr ' ' '\n')
  fi
  ((${#missing[@]} == 0)) || install_from "" "${missing[@]}"
}

install_from() { # backports|"" PACKAGE…
  local from=$1
  shift
  local meaning="installing $*"
  local -a options=(-q -y --no-install-recommends)
  if [[ -n $from ]]; then
    meaning+=" from $(release)-$from"
    options+=(-t "$(release)-$from")
  fi
  step "$meaning" without_services apt-get install "${options[@]}" "$@"
}

# Servers among the packages are wanted as programs only: none is started now, and those that tests use not at the next boot.
without_services() { # COMMAND…
  local policy=/usr/sbin/policy-rc.d status=0 wanted=/etc/systemd/system/multi-user.target.wants each
  local -a added=()
  for each in nginx haproxy caddy apache2 postgresql; do
    [[ -L $wanted/$each.service ]] || added+=("$each")
  done
  if [[ -e $policy ]]; then
    "$@" || status=$?
  else
    install -m 755 /dev/stdin "$policy" <<<$'#!/bin/sh\nexit 101'
    "$@" || status=$?
    rm -f "$policy"
  fi
  for each in "${added[@]}"; do
    [[ ! -L $wanted/$each.service ]] || systemctl disable --quiet "$each" || rm -f "$wanted/$each.service"
  done
  return "$status"
}

release() (
  # shellcheck source=/dev/null
  . /etc/os-release && echo "${VERSION_CODENAME:-unknown}"
)

# On bookworm QEMU comes from its backports: it emulates faster, and maps templates read-only. True when they can be used.
has_backports() {
  [[ $(release) == bookworm ]] || return 1
  grep -rqs --include='*.list' --include='*.sources' bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d &&
    return 0
  local mirror file=/etc/apt/sources.list.d/bookworm-backports.sources
  # shellcheck disable=SC2016 # apt's own placeholders
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk '$2 == "bookworm" { print $1; exit }')
  [[ -n $mirror ]] || return 1
  cat >"$file" <<EOF
Types: deb
URIs: $mirror
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
  step "adding bookworm-backports to apt" apt-get -q update && return 0
  rm -f "$file"
  step "going on without it" apt-get -q update
  return 1
}
