// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// The images: the same files, once to keep a sandbox and once to work in it.
const (
	pauseImage = "localhost/gpumeter/pause:1"
	shellImage = "localhost/gpumeter/shell:1"
)

// writeImage makes an archive that containerd imports: one layer with a static busybox and the
// names that pods call it by.
func writeImage(file, reference string, entrypoint ...string) error {
	layer, err := busyboxLayer()
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor("application/vnd.oci.image.config.v1+json", config),
		"layers": []any{descriptor("application/vnd.oci.image.layer.v1.tar", layer)},
	})
	if err != nil {
		return err
	}
	entry := descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
	entry["annotations"] = map[string]string{"io.containerd.image.name": reference}
	index, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{entry},
	})
	if err != nil {
		return err
	}
	archive := newArchive()
	archive.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	archive.file("index.json", 0o644, index)
	for _, blob := range [][]byte{layer, config, manifest} {
		archive.file("blobs/"+strings.ReplaceAll(digest(blob), ":", "/"), 0o644, blob)
	}
	data, err := archive.bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

func digest(blob []byte) string {
	sum := sha256.Sum256(blob)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func descriptor(mediaType string, blob []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digest(blob), "size": len(blob)}
}

func busyboxLayer() ([]byte, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	archive := newArchive()
	for _, dir := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		archive.header(tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755})
	}
	archive.file("bin/busybox", 0o755, program)
	for _, name := range []string{"sh", "sleep", "env", "ls", "cat", "sort"} {
		archive.header(tar.Header{Name: filepath.Join("bin", name), Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777})
	}
	return archive.bytes()
}

// archive is a tar in memory; the first error is kept.
type archive struct {
	buffer bytes.Buffer
	writer *tar.Writer
	err    error
}

func newArchive() *archive {
	a := &archive{}
	a.writer = tar.NewWriter(&a.buffer)
	return a
}

func (a *archive) header(h tar.Header) {
	if a.err == nil {
		a.err = a.writer.WriteHeader(&h)
	}
}

func (a *archive) file(name string, mode int64, data []byte) {
	a.header(tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(data))})
	if a.err == nil {
		_, a.err = a.writer.Write(data)
	}
}

func (a *archive) bytes() ([]byte, error) {
	if a.err == nil {
		a.err = a.writer.Close()
	}
	return a.buffer.Bytes(), a.err
}
