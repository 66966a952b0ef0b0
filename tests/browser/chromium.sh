#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of a Chromium. Where there is none and this machine's packages can be
# installed, it installs one, which is there the next time.
set -euo pipefail

find_one() {
	for name in chromium chromium-browser google-chrome google-chrome-stable headless-shell; do
		command -v "$name" && return 0
	done
	return 1
}

find_one && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
	echo "chromium.sh: there is no Chromium, and no right to install one: install the package chromium" >&2
	exit 1
fi
{
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium ||
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium; }
} >&2
find_one || { echo "chromium.sh: chromium was installed and cannot be found" >&2; exit 1; }
