// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// writeArchive writes an OCI archive of one image, or of several as one multi-architecture image. One
// image alone is also described in the way of `docker save`, for engines that know no other.
func writeArchive(to, reference string, at time.Time, images ...v1.Image) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(to), ".layout-")
	if err != nil {
		return fmt.Errorf("make a folder for the image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("begin the image's layout: %w", err)
	}
	_, tag, _ := cutTag(reference)
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": reference})
	if len(images) == 1 {
		if err := appendOne(path, images[0], named); err != nil {
			return err
		}
		if err := dockerManifest(dir, reference, images[0]); err != nil {
			return err
		}
	} else if err := appendAll(path, images, named); err != nil {
		return err
	}
	return pack(dir, to, at)
}

// cutTag is repository:tag in its parts.
func cutTag(reference string) (name, tag string, ok bool) {
	i := strings.LastIndexByte(reference, ':')
	if i < 0 || strings.Contains(reference[i:], "/") {
		return reference, "", false
	}
	return reference[:i], reference[i+1:], true
}

func platform(image v1.Image) (v1.Platform, error) {
	file, err := image.ConfigFile()
	if err != nil {
		return v1.Platform{}, fmt.Errorf("read the image's configuration: %w", err)
	}
	return v1.Platform{OS: file.OS, Architecture: file.Architecture, Variant: file.Variant}, nil
}

func appendOne(path layout.Path, image v1.Image, named layout.Option) error {
	p, err := platform(image)
	if err != nil {
		return err
	}
	if err := path.AppendImage(image, named, layout.WithPlatform(p)); err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}

func appendAll(path layout.Path, images []v1.Image, named layout.Option) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		p, err := platform(image)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &p}})
	}
	if err := path.AppendIndex(index, named); err != nil {
		return fmt.Errorf("write the image of all architectures: %w", err)
	}
	return nil
}

// dockerManifest is the description that `docker load` reads.
func dockerManifest(dir, reference string, image v1.Image) error {
	manifest, err := image.Manifest()
	if err != nil {
		return fmt.Errorf("read the image's manifest: %w", err)
	}
	blob := func(d v1.Hash) string { return "blobs/" + d.Algorithm + "/" + d.Hex }
	entry := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, l := range manifest.Layers {
		entry.Layers = append(entry.Layers, blob(l.Digest))
	}
	text, err := json.Marshal([]any{entry})
	if err != nil {
		return fmt.Errorf("describe the image for docker: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644)
}

// pack writes a folder as a tar, in one step.
func pack(dir, to string, at time.Time) (err error) {
	t := tree{}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return t.read(name, path)
	})
	if err != nil {
		return fmt.Errorf("read the image's layout: %w", err)
	}
	data, err := t.tar(at)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to+".new", data, 0o644); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return os.Rename(to+".new", to)
}

// opened is an archive, unpacked.
type opened struct {
	dir    string
	images []v1.Image
}

// openArchive reads an archive that writeArchive wrote. close removes what it unpacked.
func openArchive(from string) (*opened, error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	dir, err := os.MkdirTemp("", "gpumeter-image-")
	if err != nil {
		return nil, fmt.Errorf("make a folder to unpack to: %w", err)
	}
	o := &opened{dir: dir}
	if err := o.read(data); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", from, err), o.close())
	}
	return o, nil
}

func (o *opened) close() error { return os.RemoveAll(o.dir) }

func (o *opened) read(data []byte) error {
	in := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg || !filepath.IsLocal(h.Name) {
			continue
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		to := filepath.Join(o.dir, h.Name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, text, 0o644)); err != nil {
			return err
		}
	}
	index, err := layout.ImageIndexFromPath(o.dir)
	if err != nil {
		return err
	}
	return o.collect(index)
}

// collect adds the images of an index and of those in it.
func (o *opened) collect(index v1.ImageIndex) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		if d.MediaType.IsIndex() {
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			if err := o.collect(inner); err != nil {
				return err
			}
			continue
		}
		image, err := index.Image(d.Digest)
		if err != nil {
			return err
		}
		o.images = append(o.images, image)
	}
	return nil
}

// join writes the images of several archives as one.
func join(o options, archives []string, out io.Writer) (err error) {
	var unpacked []*opened
	defer func() {
		for _, a := range unpacked {
			err = errors.Join(err, a.close())
		}
	}()
	var images []v1.Image
	for _, from := range archives {
		a, err := openArchive(from)
		if err != nil {
			return err
		}
		unpacked, images = append(unpacked, a), append(images, a.images...)
	}
	if len(images) < 2 {
		return fmt.Errorf("join: %d images, two or more make one for several architectures", len(images))
	}
	if err := writeArchive(o.out, o.reference+":"+o.tag(), o.time(), images...); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s:%s with %d architectures\n", o.out, o.reference, o.tag(), len(images))
	return err
}
