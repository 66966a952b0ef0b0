// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
)

// programs are ours, in the order of the manual.
func programs() []string { return []string{"gpumeter", "gpumeter-exporter", "gpumeter-device-plugin"} }

const (
	homepage   = "https://github.com/gpumeter/gpumeter"
	maintainer = "gpumeter authors <gpumeter@users.noreply.github.com>"
	summary    = "electricity meter of a GPU node, for Prometheus"
	// release is the packaging's own number.
	release = "1"
)

const description = summary + `
gpumeter-exporter serves what the NVIDIA GPUs of a node do and who holds how
much of them, in the place of dcgm-exporter, and keeps a ledger of charges.
gpumeter makes bills of it and says what is wrong with a node.
gpumeter-device-plugin hands GPUs to Kubernetes.

The exporter runs as a service of the user gpumeter. It needs NVIDIA's driver
for real GPUs, and nothing for simulated ones.`

// describe is the package, with what has to be made for it in the folder stage.
func (o *options) describe(ctx context.Context, stage string) (*nfpm.Info, error) {
	contents, err := o.contents(ctx, stage)
	if err != nil {
		return nil, err
	}
	scripts := filepath.Join(o.root, "deployment", "debian", "scripts", o.format)
	info := &nfpm.Info{
		Name: "gpumeter", Arch: o.arch, Platform: "linux", Version: packageVersion(o.version), VersionSchema: "none", Release: release,
		Section: "admin", Priority: "optional", Maintainer: maintainer, Vendor: "gpumeter authors", Homepage: homepage, License: "Apache-2.0",
		Description: description, MTime: o.time(), DisableGlobbing: true,
	}
	info.Contents = contents
	info.Scripts = nfpm.Scripts{
		PostInstall: filepath.Join(scripts, "postinst"),
		PreRemove:   filepath.Join(scripts, "prerm"),
		PostRemove:  filepath.Join(scripts, "postrm"),
	}
	switch o.format {
	case "deb":
		info.Depends = []string{"libc6 (>= 2.31)", "passwd"}
		info.Suggests = []string{"bash-completion", "prometheus"}
	case "rpm":
		info.Depends = []string{"glibc >= 2.31", "shadow-utils"}
		info.RPM.Summary, info.RPM.Group = summary, "System Environment/Daemons"
		info.RPM.BuildHost = "gpumeter"
	}
	return info, nil
}
