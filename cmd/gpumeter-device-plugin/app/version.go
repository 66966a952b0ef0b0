// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"github.com/prometheus/common/version"
)

// VersionLine is what --version says of a program: the version, the commit that it was built from, and by which Go for which system.
func VersionLine() string {
	return fmt.Sprintf("%s (revision %s, %s, %s/%s)", Version(), version.GetRevision(), version.GoVersion, version.GoOS, version.GoArch)
}
