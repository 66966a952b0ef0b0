// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"hash/fnv"
	"strconv"
)

// mix is a hash of numbers (splitmix64 over the parts): all of a node's chance comes
// from it, so that chance depends on what a thing is and never on what was asked before.
func mix(seed uint64, parts ...uint64) uint64 {
	h := seed
	for _, p := range parts {
		h += 0x9e3779b97f4a7c15 + p*0xd1342543de82ef95
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
	}
	return h
}

// unit01 maps a hash to 0..1.
func unit01(h uint64) float64 { return float64(h>>11) / (1 << 53) }

func hashText(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// uuidFrom is a version-4 shaped UUID made of a hash.
func uuidFrom(h uint64) string {
	a, b := mix(h, 1), mix(h, 2)
	return fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x",
		uint32(a>>32), uint16(a>>16), a&0xfff, 0x8000|b>>48&0x3fff, b&0xffffffffffff)
}

// suffix is what a controller appends to generated pod names; the alphabet has
// neither vowels nor digits that look like letters.
func suffix(h uint64, n int) string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"
	out := make([]byte, n)
	for i := range out {
		h = mix(h, uint64(i))
		out[i] = alphabet[h%uint64(len(alphabet))]
	}
	return string(out)
}

// backgroundPod is a pod without a GPU.
type backgroundPod struct {
	namespace, name string
	containers      []string
}

// backgroundPods are the pods that a node runs anyway; beyond the first they are
// services of tenants.
func backgroundPods(count int, seed uint64) []backgroundPod {
	daemons := []backgroundPod{
		{"kube-system", "kube-proxy", []string{"kube-proxy"}},
		{"kube-system", "cilium", []string{"cilium-agent"}},
		{"kube-system", "coredns", []string{"coredns"}},
		{"kube-system", "csi-node", []string{"driver", "node-driver-registrar", "liveness-probe"}},
		{"gpu-operator", "nvidia-device-plugin-daemonset", []string{"nvidia-device-plugin"}},
		{"gpu-operator", "gpu-feature-discovery", []string{"gpu-feature-discovery"}},
		{"gpu-operator", "nvidia-container-toolkit-daemonset", []string{"nvidia-container-toolkit-ctr"}},
		{"monitoring", "node-exporter", []string{"node-exporter", "kube-rbac-proxy"}},
		{"monitoring", "promtail", []string{"promtail"}},
		{"ingress", "envoy", []string{"envoy", "shutdown-manager"}},
	}
	services := []string{"api", "web", "worker", "cache", "queue", "scheduler", "gateway", "indexer"}
	pods := make([]backgroundPod, 0, count)
	for i := range count {
		h := mix(seed, hashText("background"), uint64(i))
		if i < len(daemons) {
			p := daemons[i]
			p.name += "-" + suffix(h, 5)
			pods = append(pods, p)
			continue
		}
		service := services[h%uint64(len(services))]
		pods = append(pods, backgroundPod{
			namespace:  "team-" + strconv.Itoa(int((h>>8)%5)),
			name:       service + "-" + suffix(mix(h, 3), 9) + "-" + suffix(mix(h, 4), 5),
			containers: []string{service},
		})
	}
	return pods
}
