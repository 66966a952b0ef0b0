// SPDX-License-Identifier: Apache-2.0

// Command debian makes the packages of gpumeter for nodes without Kubernetes, for Debian and its relatives and as RPM:
// programs, unit, counter files, manual, completions and examples. The same inputs give the same bytes. docs/slurm.md
// says how they are used.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/rpm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "debian:", err)
		os.Exit(1)
	}
}

// options are the command line's.
type options struct {
	// format is deb or rpm, arch Go's word.
	format, arch string
	// programs has our programs for arch, host those that run here and know their completions.
	programs, host string
	// root is the repository, licences has those of what the programs are made of.
	root, licences string
	version        string
	// created is in seconds since 1970, the time of the commit.
	created int64
	out     string
}

func (o *options) flags() *flag.FlagSet {
	flags := flag.NewFlagSet("debian", flag.ContinueOnError)
	flags.StringVar(&o.format, "format", "deb", "deb or rpm")
	flags.StringVar(&o.arch, "arch", "amd64", "`ARCH` of the programs: amd64 or arm64")
	flags.StringVar(&o.programs, "programs", "bin", "`DIR` with our programs for that ARCH")
	flags.StringVar(&o.host, "host", "bin", "`DIR` with our programs for this machine, which print their completions")
	flags.StringVar(&o.root, "root", ".", "`DIR` of the repository")
	flags.StringVar(&o.licences, "licences", "", "`DIR` with the licences of what the programs are made of; none for no licences")
	flags.StringVar(&o.version, "version", "unknown", "version of the programs, as git describes it")
	flags.Int64Var(&o.created, "created", 0, "time of all files, in seconds since 1970")
	flags.StringVar(&o.out, "out", ".", "`DIR` for the package")
	return flags
}

func (o *options) time() time.Time { return time.Unix(o.created, 0).UTC() }

// run obeys one command line and prints the file that it made.
func run(ctx context.Context, args []string, out io.Writer) error {
	o := options{}
	if err := o.flags().Parse(args); err != nil {
		return err
	}
	packagers := map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM}
	packager := packagers[o.format]
	if packager == nil {
		return fmt.Errorf("-format %q: want deb or rpm", o.format)
	}
	stage, err := os.MkdirTemp("", "gpumeter-package-")
	if err != nil {
		return fmt.Errorf("make a folder for what is written into the package: %w", err)
	}
	defer func() { _ = os.RemoveAll(stage) }()
	info, err := o.describe(ctx, stage)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, o.format); err != nil {
		return fmt.Errorf("lay out the %s: %w", o.format, err)
	}
	name := filepath.Join(o.out, packager.ConventionalFileName(info))
	if err := write(name, func(w io.Writer) error { return packager.Package(info, w) }); err != nil {
		return err
	}
	fmt.Fprintln(out, name)
	return nil
}

// write makes a file, and leaves nothing where that fails.
func write(name string, fill func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", name, err)
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the package: %w", err)
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", name, err), os.Remove(name))
	}
	return nil
}
