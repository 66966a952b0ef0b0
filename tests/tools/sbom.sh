#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Has syft look into each image of bin/image and writes what is in it beside it, as SPDX.
set -euo pipefail
cd "$(dirname "$0")/../.."

export SYFT_CHECK_FOR_APP_UPDATE=false
# The modules' licences are where they were built from.
export SYFT_GOLANG_SEARCH_LOCAL_MOD_CACHE_LICENSES=true
for image in bin/image/*-linux-*.tar; do
	"$SYFT" scan --quiet "oci-archive:$image" --output "spdx-json=bin/image/.scanned"
	bin/image/assemble sbom -version "$VERSION" -created "$SOURCE_DATE_EPOCH" -out "${image%.tar}.spdx.json" bin/image/.scanned "$image"
	echo "${image%.tar}.spdx.json: $(grep -c '"SPDXID": "SPDXRef-Package-' "${image%.tar}.spdx.json") packages"
done
rm bin/image/.scanned
