// SPDX-License-Identifier: Apache-2.0

// Command image assembles gpumeter's container image without a container engine: Debian packages that
// packages.lock pins, our programs and their files, as an OCI archive. The same inputs give the same bytes.
// docs/image.md says what is in it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

const usage = `usage:
  image build   -arch ARCH -programs DIR -version V -revision R -created UNIX [-variant operator] -out FILE
  image join    -version V -out FILE ARCHIVE...      one archive for several architectures
  image rootfs  -arch ARCH -programs DIR -out DIR    the image's files as a folder, for the Dockerfile
  image inspect ARCHIVE...                           layers, sizes, configuration
  image sbom    -version V -created UNIX -out FILE SPDX ARCHIVE   a scanner's SPDX, the same each time
  image licences -programs DIR -out DIR                            licences of what the programs are made of
  image lock                                         pin the newest Debian packages in packages.lock
`

// run obeys one command line.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command\n" + strings.TrimSpace(usage))
	}
	o := options{}
	flags := o.flags(args[0])
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "build":
		return build(ctx, o, out)
	case "join":
		return join(o, flags.Args(), out)
	case "rootfs":
		return rootfs(ctx, o)
	case "inspect":
		return inspectAll(flags.Args(), out)
	case "sbom":
		return sbom(o, flags.Args())
	case "licences":
		return licences(ctx, o)
	case "lock":
		return writeLock(ctx, o.lock, out)
	default:
		return fmt.Errorf("no command %q\n%s", args[0], strings.TrimSpace(usage))
	}
}

// options are the flags of all commands.
type options struct {
	// arch is Go's and Debian's word: amd64 or arm64.
	arch string
	// programs has our programs for arch; root is the repository, lock the pinned packages.
	programs, root, lock string
	// version and revision are stamped on the image, reference names it.
	version, revision, reference string
	// created is in seconds since 1970, the time of the commit.
	created int64
	// variant is empty or operator.
	variant string
	out     string
}

func (o *options) flags(command string) *flag.FlagSet {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.StringVar(&o.arch, "arch", "amd64", "`ARCH` of the image: amd64 or arm64")
	flags.StringVar(&o.programs, "programs", "bin", "`DIR` with our programs for that ARCH")
	flags.StringVar(&o.root, "root", ".", "`DIR` of the repository")
	flags.StringVar(&o.lock, "lock", "deployment/image/packages.lock", "`FILE` that pins the Debian packages")
	flags.StringVar(&o.version, "version", "unknown", "version of the programs")
	flags.StringVar(&o.revision, "revision", "unknown", "commit that they were built from")
	flags.StringVar(&o.reference, "reference", repository, "`NAME` of the image, without its tag")
	flags.Int64Var(&o.created, "created", 0, "time of all files and of the image, in seconds since 1970")
	flags.StringVar(&o.variant, "variant", "", "operator: with a shell and as root, as the GPU Operator wants its images")
	flags.StringVar(&o.out, "out", "", "`FILE` or folder to write")
	return flags
}

func (o *options) time() time.Time { return time.Unix(o.created, 0).UTC() }

// tag is the image's tag, which has no plus sign, unlike a version.
func (o *options) tag() string {
	tag := strings.ReplaceAll(strings.TrimPrefix(o.version, "v"), "+", "-")
	if o.variant != "" {
		tag += "-" + o.variant
	}
	return tag
}
