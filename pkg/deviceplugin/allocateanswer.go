// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	visibleDevices = "NVIDIA_VISIBLE_DEVICES"
	// mountedDevices is where the container runtime looks for the devices that are mounts,
	// which, unlike an environment variable, a pod without privileges cannot make itself.
	mountedDevices = "/var/run/nvidia-container-devices"
	enabled        = "enabled"
	readWrite      = "rw"
)

// answer tells a container its devices in each of the ways that are set.
func (a *Allocator) answer(shares []share) Response {
	s := a.settings
	var r Response
	names := make([]string, 0, len(shares))
	for _, each := range shares {
		names = append(names, a.told(each))
	}
	a.addCDI(&r, names)
	a.addMPS(&r, shares)
	for name, on := range map[string]bool{"NVIDIA_GDRCOPY": s.GDRCopy, "NVIDIA_GDS": s.GDS, "NVIDIA_MOFED": s.MOFED} {
		if on {
			r.setEnv(name, enabled)
		}
	}
	ways := s.ListStrategies
	if len(ways) == 0 {
		ways = []ListStrategy{ListEnvvar}
	}
	envvar, mounts := slices.Contains(ways, ListEnvvar), slices.Contains(ways, ListVolumeMounts)
	if !envvar && !mounts {
		return r
	}
	if envvar {
		r.setEnv(visibleDevices, strings.Join(names, ","))
		if len(a.imex) > 0 {
			r.setEnv("NVIDIA_IMEX_CHANNELS", joined(a.imex))
		}
	}
	if mounts {
		r.setEnv(visibleDevices, mountedDevices)
		for _, name := range names {
			r.Mounts = append(r.Mounts, Mount{Host: "/dev/null", Container: path.Join(mountedDevices, name)})
		}
		for _, channel := range a.imex {
			r.Mounts = append(r.Mounts, Mount{Host: "/dev/null", Container: path.Join(mountedDevices, "imex", strconv.Itoa(channel))})
		}
	}
	if s.PassDeviceSpecs {
		r.Nodes = a.nodes(shares)
	}
	return r
}

// told is what stands for the device in what a container is told.
func (a *Allocator) told(s share) string {
	if a.settings.IDStrategy == IDIndex {
		return s.index
	}
	return string(s.UUID)
}

func (r *Response) setEnv(name, value string) {
	if r.Env == nil {
		r.Env = make(map[string]string)
	}
	r.Env[name] = value
}

func (a *Allocator) addCDI(r *Response, names []string) {
	s := a.settings
	annotated, direct := slices.Contains(s.ListStrategies, ListCDIAnnotations), slices.Contains(s.ListStrategies, ListCDICRI)
	if !annotated && !direct {
		return
	}
	var devices []string
	for _, name := range names {
		devices = append(devices, a.cdi.Qualified("gpu", name))
	}
	for _, channel := range a.imex {
		devices = append(devices, a.cdi.Qualified("imex-channel", strconv.Itoa(channel)))
	}
	for _, extra := range []struct {
		class string
		on    bool
	}{{"gdrcopy", s.GDRCopy}, {"gds", s.GDS}, {"mofed", s.MOFED}} {
		if extra.on {
			devices = append(devices, a.cdi.Qualified(extra.class, "all"))
		}
	}
	if annotated {
		prefix := s.CDIAnnotationPrefix
		if prefix == "" {
			prefix = "cdi.k8s.io/"
		}
		list := strings.Join(devices, ",")
		r.Annotations = map[string]string{prefix + "nvidia-device-plugin_" + a.annotationID(list): list}
	}
	if direct {
		r.CDIDevices = devices
	}
}

// annotationID tells the annotations of several resources in one container apart. It has the
// form of a UUID and is made from what it stands for, so that equal requests have equal answers.
func (a *Allocator) annotationID(list string) string {
	sum := sha256.Sum256([]byte(a.resource.Name + "\n" + list))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// nodes are the device nodes of the shares, the control nodes first, each once.
func (a *Allocator) nodes(shares []share) []Node {
	paths := slices.Clone(a.control)
	for _, s := range shares {
		paths = append(paths, s.Nodes...)
	}
	for _, channel := range a.imex {
		paths = append(paths, imexNode(channel))
	}
	root := a.settings.DevRoot
	if root == "" {
		root = "/"
	}
	var nodes []Node
	seen := make(map[string]bool, len(paths))
	for _, p := range paths {
		if !seen[p] {
			seen[p] = true
			nodes = append(nodes, Node{Host: path.Join(root, p), Container: p, Permissions: readWrite})
		}
	}
	return nodes
}

func imexNode(channel int) string {
	return "/dev/nvidia-caps-imex-channels/channel" + strconv.Itoa(channel)
}

func joined(numbers []int) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.Itoa(n)
	}
	return strings.Join(words, ",")
}
