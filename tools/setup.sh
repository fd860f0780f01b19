#!/usr/bin/env bash
# Makes a fresh Debian 12 ready: installs what is missing of tools/apt-packages.txt, then configures and
# builds a preset. Does nothing, quietly, when all is there. Progress goes to stderr.
#
#   tools/setup.sh                        packages only
#   tools/setup.sh PRESET [TARGET...]     packages, then build the preset (all targets, or those named)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing_packages() {
  local wanted installed
  wanted=$(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' tools/apt-packages.txt | sort -u)
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' 2>/dev/null |
    sed -n 's/^installed //p' | sort -u)
  comm -23 <(echo "$wanted") <(echo "$installed")
}

install_packages() {
  local as_root=()
  if [[ $(id -u) -ne 0 ]]; then
    # A password may only be asked for where somebody can type it.
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
      as_root=(sudo)
    else
      echo "tools/setup.sh: packages are missing and there is neither root nor sudo to install them." >&2
      echo "Install them, then run this again:" >&2
      echo "  apt-get install $*" >&2
      exit 2
    fi
  fi
  echo "tools/setup.sh: installing $*" >&2
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -q --no-install-recommends "$@"; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "tools/setup.sh: apt-get failed (log: $log). Install these packages, then run this again:" >&2
    echo "  apt-get install $*" >&2
    exit 2
  fi
  rm -f "$log"
}

if ! command -v dpkg-query >/dev/null; then
  echo "tools/setup.sh: this is not Debian; install what these Debian 12 packages stand for, then use" >&2
  echo "'cmake --workflow --preset release' directly:" >&2
  echo "  $(sed -e 's/#.*//' tools/apt-packages.txt | xargs)" >&2
  exit 2
fi
mapfile -t missing < <(missing_packages)
if [[ ${#missing[@]} -gt 0 ]]; then
  install_packages "${missing[@]}"
fi

if [[ $# -gt 0 ]]; then
  preset=$1
  shift
  if ! configured=$(cmake --preset "$preset" 2>&1); then
    echo "$configured" >&2
    exit 1
  fi
  cmake --build --preset "$preset" ${1:+--target "$@"} >&2
fi
