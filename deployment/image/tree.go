// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is one entry of a tree: a regular file, a folder, or a link when link is set.
type file struct {
	mode         fs.FileMode
	owner, group int
	link         string
	data         []byte
}

// tree is a file system by path, without a leading slash. Folders above an entry need no entry.
type tree map[string]file

// add puts an entry where a system with a merged /usr has it, which Debian 12 is.
func (t tree) add(name string, f file) {
	name = strings.Trim(path.Clean("/"+name), "/")
	for _, top := range merged() {
		if strings.HasPrefix(name, top+"/") {
			name = "usr/" + name
		}
	}
	t[name] = f
}

// merged are the folders that are links into /usr.
func merged() []string { return []string{"bin", "lib", "lib64", "sbin"} }

func (t tree) text(name, text string) { t.add(name, file{mode: 0o644, data: []byte(text)}) }
func (t tree) symlink(name, target string) {
	t.add(name, file{mode: 0o777 | fs.ModeSymlink, link: target})
}
func (t tree) program(name string, b []byte) { t.add(name, file{mode: 0o755, data: b}) }
func (t tree) folder(name string, f file)    { f.mode |= fs.ModeDir; t.add(name, f) }
func (t tree) read(name, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read what becomes /%s: %w", name, err)
	}
	t.add(name, file{mode: 0o644, data: data})
	return nil
}

// names are all paths in order, with the folders above them.
func (t tree) names() []string {
	all := map[string]bool{}
	for name := range t {
		for ; name != "."; name = path.Dir(name) {
			all[name] = true
		}
	}
	return sorted(all)
}

// get is an entry; a folder that has none of its own is root's.
func (t tree) get(name string) file {
	if f, ok := t[name]; ok {
		return f
	}
	return file{mode: 0o755 | fs.ModeDir}
}

// tar is the tree as a layer. Order, owners and times follow from the tree and the argument alone.
func (t tree) tar(at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range t.names() {
		f := t.get(name)
		header := &tar.Header{
			Name: name, Mode: tarMode(f.mode), Uid: f.owner, Gid: f.group, ModTime: at,
			Size: int64(len(f.data)), Linkname: f.link, Typeflag: tar.TypeReg,
		}
		switch {
		case f.mode.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, name+"/"
		case f.link != "":
			header.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("write the header of /%s: %w", name, err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write /%s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("end a layer: %w", err)
	}
	return out.Bytes(), nil
}

func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// write makes the tree below a folder. Owners are set where this process may set them.
func (t tree) write(dir string, at time.Time) error {
	names := t.names()
	for _, name := range names {
		if err := t.get(name).write(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("write /%s of the image: %w", name, err)
		}
	}
	for _, name := range slices.Backward(names) {
		if f := t.get(name); f.link == "" {
			if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
				return fmt.Errorf("set the time of /%s of the image: %w", name, err)
			}
		}
	}
	return nil
}

func (f file) write(to string) error {
	switch {
	case f.mode.IsDir():
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
	case f.link != "":
		return os.Symlink(f.link, to)
	default:
		if err := os.WriteFile(to, f.data, 0o644); err != nil {
			return err
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(to, f.owner, f.group); err != nil {
			return err
		}
	}
	return os.Chmod(to, f.mode&(fs.ModePerm|fs.ModeSticky))
}

// readTar adds what a tar has, for as long as keep wants it.
func (t tree) readTar(r io.Reader, keep func(name string, link bool) bool) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a tar: %w", err)
		}
		name := strings.Trim(path.Clean("/"+h.Name), "/")
		if name == "" || !keep(name, h.Typeflag == tar.TypeSymlink) {
			continue
		}
		f := file{mode: h.FileInfo().Mode(), owner: h.Uid, group: h.Gid}
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeSymlink:
			f.link = h.Linkname
		case tar.TypeReg:
			if f.data, err = io.ReadAll(in); err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
		default:
			return fmt.Errorf("read a tar: %s is neither a file, a folder nor a link", name)
		}
		t.add(name, f)
	}
}
