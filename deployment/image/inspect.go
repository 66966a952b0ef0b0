// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// inspectAll prints what archives have in them.
func inspectAll(archives []string, out io.Writer) error {
	for _, from := range archives {
		a, err := openArchive(from)
		if err != nil {
			return err
		}
		for _, image := range a.images {
			if err := inspect(image, out); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", from, err), a.close())
			}
		}
		if err := a.close(); err != nil {
			return fmt.Errorf("remove what was unpacked: %w", err)
		}
	}
	return nil
}

func inspect(image v1.Image, out io.Writer) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	c := file.Config
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s %s\n", file.OS, file.Architecture, digest)
	fmt.Fprintf(&b, "  created %s, user %s, folder %s, entry point %s\n", file.Created.UTC().Format("2006-01-02T15:04:05Z"), c.User, c.WorkingDir, strings.Join(c.Entrypoint, " "))
	for _, port := range sorted(c.ExposedPorts) {
		fmt.Fprintf(&b, "  port %s\n", port)
	}
	for _, variable := range c.Env {
		fmt.Fprintf(&b, "  env %s\n", variable)
	}
	for _, name := range sorted(c.Labels) {
		fmt.Fprintf(&b, "  label %s=%s\n", name, c.Labels[name])
	}
	for i, l := range manifest.Layers {
		what := ""
		if i < len(file.History) {
			what = file.History[i].CreatedBy
		}
		fmt.Fprintf(&b, "  layer %s %6.2f MB  %s\n", l.Digest, float64(l.Size)/1e6, what)
	}
	_, err = io.WriteString(out, b.String())
	return err
}
