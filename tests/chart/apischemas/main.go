// SPDX-License-Identifier: Apache-2.0

// Command apischemas writes the JSON schemas that rendered manifests are held to: those of the kinds that the chart makes, of
// the oldest and the newest Kubernetes that it supports and of the Prometheus operator. README.md says how to run it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	operator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	// group and kind in Kubernetes' OpenAPI document.
	gvkKey    = "x-kubernetes-group-version-kind"
	admission = "admissionregistration.k8s.io/v1"
)

// kubernetes are the versions whose API the chart is held to, as modules.
func kubernetes() []string {
	return []string{"k8s.io/kubernetes@v1.28.15", "k8s.io/kubernetes@v1.37.2"}
}

// kinds are the kinds that the chart and the manifests have, by API version. Those of admission are rendered for newer versions
// alone.
func kinds() map[string][]string {
	return map[string][]string{
		admission:                      {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
		"v1":                           {"ConfigMap", "Namespace", "ResourceQuota", "Secret", "Service", "ServiceAccount"},
		"apps/v1":                      {"DaemonSet"},
		"networking.k8s.io/v1":         {"NetworkPolicy"},
		"policy/v1":                    {"PodDisruptionBudget"},
		"rbac.authorization.k8s.io/v1": {"ClusterRole", "ClusterRoleBinding"},
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "apischemas FOLDER writes the schemas into FOLDER")
		os.Exit(2)
	}
	if err := write(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "apischemas:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, folder string) error {
	for _, module := range kubernetes() {
		dir, err := fetch(ctx, module)
		if err != nil {
			return err
		}
		version := module[strings.Index(module, "@")+1:]
		if err := writeKubernetes(dir+"/api/openapi-spec/swagger.json", filepath.Join(folder, version)); err != nil {
			return fmt.Errorf("%s: %w", module, err)
		}
	}
	dir, err := fetch(ctx, operator)
	if err != nil {
		return err
	}
	for _, kind := range []string{"ServiceMonitor", "PodMonitor", "PrometheusRule"} {
		crd := dir + "/example/prometheus-operator-crd/monitoring.coreos.com_" + strings.ToLower(kind) + "s.yaml"
		if err := writeCRD(crd, kind, filepath.Join(folder, "prometheus-operator")); err != nil {
			return fmt.Errorf("%s: %w", operator, err)
		}
	}
	return nil
}

// fetch has Go's module cache get a module, and says where it is.
func fetch(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var got struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &got); jsonErr != nil || got.Dir == "" {
		return "", fmt.Errorf("%s cannot be fetched through Go's module proxy: %w %s", module, err, got.Error)
	}
	return got.Dir, nil
}

type schema = map[string]any

func writeKubernetes(swagger, folder string) error {
	data, err := os.ReadFile(swagger)
	if err != nil {
		return err
	}
	var doc struct {
		Definitions map[string]schema `json:"definitions"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	for apiVersion, names := range kinds() {
		for _, kind := range names {
			name, found := find(doc.Definitions, apiVersion, kind)
			if !found && apiVersion == admission {
				continue
			}
			if !found {
				return fmt.Errorf("no definition of %s %s", apiVersion, kind)
			}
			whole := schema{"$defs": reachable(doc.Definitions, name), "$ref": "#/$defs/" + name}
			if err := save(folder, kind, apiVersion, whole); err != nil {
				return err
			}
		}
	}
	return nil
}

func find(all map[string]schema, apiVersion, kind string) (string, bool) {
	for name, s := range all {
		gvks, _ := s[gvkKey].([]any)
		for _, g := range gvks {
			gvk, _ := g.(schema)
			if gvk["kind"] == kind && strings.TrimPrefix(fmt.Sprintf("%v/%v", gvk["group"], gvk["version"]), "/") == apiVersion {
				return name, true
			}
		}
	}
	return "", false
}

// reachable are the definitions that one needs, each strict.
func reachable(all map[string]schema, from string) schema {
	out := schema{}
	var visit func(name string)
	visit = func(name string) {
		if _, seen := out[name]; seen {
			return
		}
		out[name] = nil
		out[name] = known(name, strict(all[name], func(ref string) { visit(ref) }))
	}
	visit(from)
	return out
}

// known replaces the definitions of which the document says less than is so: both are written as a string or a number.
func known(name string, s any) any {
	if strings.HasSuffix(name, ".IntOrString") || strings.HasSuffix(name, ".Quantity") {
		return schema{"type": []string{"string", "number"}}
	}
	return s
}

// strict is a schema without the words for people that allows no other keys than it has, and null where the API server takes it for
// absent. visit is told each reference.
func strict(s any, visit func(string)) any {
	switch s := s.(type) {
	case schema:
		out := schema{}
		for key, value := range s {
			switch {
			case key == "properties":
				properties := schema{}
				for name, p := range value.(schema) {
					properties[name] = strict(p, visit)
				}
				out[key] = properties
			case key == "$ref":
				name := value.(string)[strings.LastIndex(value.(string), "/")+1:]
				visit(name)
				out[key] = "#/$defs/" + name
			case key == "description", key == "default", key == "example", strings.HasPrefix(key, "x-"):
			default:
				out[key] = strict(value, visit)
			}
		}
		if s["x-kubernetes-int-or-string"] == true {
			delete(out, "anyOf")
			out["type"] = []string{"string", "integer"}
		}
		if _, has := out["properties"]; has && s["x-kubernetes-preserve-unknown-fields"] != true && out["additionalProperties"] == nil {
			out["additionalProperties"] = false
		}
		return out
	case []any:
		out := make([]any, len(s))
		for i, v := range s {
			out[i] = strict(v, visit)
		}
		return out
	default:
		return s
	}
}

func writeCRD(file, kind, folder string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var crd struct {
		Spec struct {
			Group    string
			Versions []struct {
				Name   string
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				}
			}
		}
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, v := range crd.Spec.Versions {
		s := v.Schema.OpenAPIV3Schema
		s["properties"].(schema)["metadata"] = schema{"type": "object"}
		if err := save(folder, kind, crd.Spec.Group+"/"+v.Name, strict(s, func(string) {})); err != nil {
			return err
		}
	}
	return nil
}

// save writes a schema under the name by which kubeconform looks for it.
func save(folder, kind, apiVersion string, s any) error {
	var text bytes.Buffer
	encode := json.NewEncoder(&text)
	encode.SetEscapeHTML(false)
	encode.SetIndent("", " ")
	if err := encode.Encode(s); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	group, version, grouped := strings.Cut(apiVersion, "/")
	suffix := "-" + group
	if grouped {
		suffix = "-" + strings.Split(group, ".")[0] + "-" + version
	}
	return os.WriteFile(filepath.Join(folder, strings.ToLower(kind)+suffix+".json"), text.Bytes(), 0o644)
}
