// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	repository = "ghcr.io/gpumeter/gpumeter"
	source     = "https://github.com/gpumeter/gpumeter"
)

// labels are the image's labels, and the annotations of its manifest.
func labels(o options) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "gpumeter",
		"org.opencontainers.image.description":   "The electricity meter of a GPU node: a drop-in replacement of dcgm-exporter and of NVIDIA's device plugin that attributes every share of every GPU.",
		"org.opencontainers.image.source":        source,
		"org.opencontainers.image.url":           source,
		"org.opencontainers.image.documentation": source + "/tree/main/docs",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       o.version,
		"org.opencontainers.image.revision":      o.revision,
		"org.opencontainers.image.created":       o.time().Format(time.RFC3339),
	}
}

// config is how the image starts. NVIDIA's container runtime goes by the three NVIDIA variables: which
// GPUs and which of the driver's libraries a container gets, and that it need not have CUDA.
func config(o options) v1.Config {
	c := v1.Config{
		Entrypoint: []string{"/usr/bin/gpumeter-exporter"},
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"NVIDIA_VISIBLE_DEVICES=all",
			"NVIDIA_DRIVER_CAPABILITIES=compute,utility",
			"NVIDIA_DISABLE_REQUIRE=true",
		},
		User:         "65532:65532",
		WorkingDir:   "/",
		ExposedPorts: map[string]struct{}{"9400/tcp": {}},
		Labels:       labels(o),
	}
	if o.variant == operator {
		c.User = "0:0"
		c.WorkingDir = "/tmp"
	}
	return c
}

// assemble makes the image of one architecture.
func assemble(ctx context.Context, o options) (v1.Image, error) {
	all, err := layers(ctx, o)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	file := &v1.ConfigFile{Architecture: o.arch, OS: "linux", Created: v1.Time{Time: o.time()}, Config: config(o), RootFS: v1.RootFS{Type: "layers"}}
	if o.arch == "arm64" {
		file.Variant = "v8"
	}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return nil, fmt.Errorf("set the image's configuration: %w", err)
	}
	for _, l := range all {
		made, err := compress(l.tree, o.time())
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.name, err)
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: made, History: v1.History{Created: v1.Time{Time: o.time()}, CreatedBy: l.comment}})
		if err != nil {
			return nil, fmt.Errorf("add layer %s: %w", l.name, err)
		}
	}
	annotated, ok := mutate.Annotations(image, labels(o)).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotate the image of %s", o.arch)
	}
	return annotated, nil
}

func compress(t tree, at time.Time) (v1.Layer, error) {
	plain, err := t.tar(at)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(plain)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching)
}

// build writes the archive of one architecture.
func build(ctx context.Context, o options, out io.Writer) error {
	image, err := assemble(ctx, o)
	if err != nil {
		return err
	}
	if err := writeArchive(o.out, o.reference+":"+o.tag(), o.time(), image); err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return fmt.Errorf("digest of the image: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s: %s:%s %s\n", o.out, o.reference, o.tag(), digest)
	return err
}
