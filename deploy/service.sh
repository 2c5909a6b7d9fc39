# shellcheck shell=bash
# Read by ./dev and by the install of a release, after packages.sh: the systemd service of the tree in the current folder, with
# the data folder $data.

settings=/etc/capsule.env
units=/etc/systemd/system

unit() {
  sed -e "s|@REPOSITORY@|$PWD|g" -e "s|@DATA@|$data|g" -e "s|@SETTINGS@|$settings|g" deploy/capsule.service
}

# Folders above a path in which a user other than root can replace what is on the way to it. A sticky folder lets nobody
# replace root's files.
folders_above_of_others() { # PATH
  local path=$1
  while [[ $path != / ]]; do
    path=$(dirname "$path")
    [[ ! -e $path ]] || find "$path" -maxdepth 0 \( ! -user 0 -o -perm /022 ! -perm -1000 \( -perm /002 -o ! -group 0 \) \)
  done
}

# Paths through which a user other than root could change what the service runs as root: a folder above the tree, or a
# file in it.
changeable_by_others() { # TREE
  folders_above_of_others "$1"
  find "$1" -name .capsule -prune -o \( ! -user 0 -o ! -type l -perm /022 \( -perm /002 -o ! -group 0 \) \) -print
}

require_own_tree() { # REMEDY
  local tree found
  for tree in "$PWD" "$(readlink -f node_modules)"; do
    [[ -e $tree ]] || continue
    read -r found < <(changeable_by_others "$tree") || continue
    fail "the service runs this code as root, and others than root can change $found ($(stat -c 'owner %U, mode %a' "$found")).
$1"
  done
}

# The data folder has the copies of QEMU, which the service runs. The service makes it for root alone.
require_own_data() { # REMEDY
  local found
  read -r found < <(
    folders_above_of_others "$data"
    # A sticky folder is refused too: others could put a database or a key into it before the first start.
    find "$data" -maxdepth 1 \( ! -user 0 -o ! -type l -perm /022 \( -perm /002 -o ! -group 0 \) \) 2>/dev/null
  ) || return 0
  fail "the service runs the QEMU in its data folder as root, and others than root can change $found ($(stat -c 'owner %U, mode %a' "$found")).
$1"
}

setting() { # NAME DEFAULT
  local value=
  [[ ! -r $settings ]] || value=$(sed -n "s/^$1=//p" "$settings" | tail -n 1 | sed -E "s/^([\"'])(.*)\1$/\2/")
  echo "${value:-$2}"
}

# ListenStream= of each address; nothing where the service has to open its port itself: for any free port, and for a name.
addresses() {
  local host port
  host=$(setting CAPSULE_HOST 127.0.0.1) port=$(setting CAPSULE_PORT 8080)
  [[ $port =~ ^[1-9][0-9]*$ ]] || return 0
  if [[ $host == localhost ]]; then
    echo "ListenStream=127.0.0.1:$port"
    ! grep -qs '^0\{31\}1 ' /proc/net/if_inet6 || echo "ListenStream=[::1]:$port"
  elif [[ $host =~ ^[0-9.]+$ ]]; then
    echo "ListenStream=$host:$port"
  elif [[ $host == *:* ]]; then
    echo "ListenStream=[$host]:$port"
  fi
}

socket_unit() { # ADDRESSES
  local listen=${1//$'\n'/\\n}
  sed -e "s|@REPOSITORY@|$PWD|g" -e "s|@SETTINGS@|$settings|g" -e "s|@LISTEN@|$listen|" deploy/capsule.socket
}

# A server without the socket unit holds the port, and is stopped before systemd opens it.
open_socket() { # ADDRESSES
  local unit
  unit=$(socket_unit "$1")
  if [[ -e $units/capsule.socket && $(<"$units/capsule.socket") == "$unit" ]] && systemctl is-active --quiet capsule.socket; then return; fi
  close_socket
  systemctl stop capsule 2>/dev/null || true
  echo "$unit" >"$units/capsule.socket"
  systemctl daemon-reload
  systemctl enable --quiet capsule.socket
  step "opening the port" systemctl start capsule.socket
}

close_socket() {
  [[ -e $units/capsule.socket ]] || return 0
  systemctl disable --quiet --now capsule.socket
  rm -f "$units/capsule.socket"
  systemctl daemon-reload
}

# Running capsules go on: the unit ends the old server alone, and the new one finds their VMs again.
start_service() {
  local listen
  listen=$(addresses)
  unit >"$units/capsule.service"
  systemctl daemon-reload
  systemctl enable --quiet capsule
  if [[ -n $listen ]]; then open_socket "$listen"; else close_socket; fi
  step "starting the service" systemctl restart capsule
  echo "The service runs here: systemctl status capsule, journalctl -u capsule." >&2
}

write_settings() {
  [[ -e $settings ]] ||
    install -m 600 /dev/stdin "$settings" <<<"# Settings of the capsule service, as NAME=VALUE; $1 serve --help lists them."
}

is_installed() { [[ -e $units/capsule.service ]]; }

# Ends the service and all its VMs. Capsules and templates stay in the data folder, for the next install.
remove_service() {
  local unit=$units/capsule.service
  data=$(sed -n 's/^Environment=CAPSULE_DATA=//p' "$unit") # the folder that it was installed with
  close_socket # before the service, which a connection would start again
  step "stopping the service" systemctl disable --now capsule
  CAPSULE_DATA=$data ./capsule down
  systemctl clean --what=cache capsule
  rm -f "$unit"
  systemctl daemon-reload
  systemctl reset-failed capsule 2>/dev/null || true
}

remove_data() {
  [[ ! -d $data ]] || find "$data" -mindepth 1 -delete
  rmdir "$data" 2>/dev/null || true # it may be a disk of its own
  rm -f "$settings"
}
