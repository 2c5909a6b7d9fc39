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

# Running capsules go on: the unit ends the old server alone, and the new one finds their VMs again.
start_service() {
  unit >"$units/capsule.service"
  systemctl daemon-reload
  systemctl enable --quiet capsule
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
