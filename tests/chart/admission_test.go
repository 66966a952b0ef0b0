// SPDX-License-Identifier: Apache-2.0

package chart_test

import (
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	apicel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	celenvironment "k8s.io/apiserver/pkg/cel/environment"
)

// expression is one of a policy's.
type expression struct{ name, text string }

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType, celgo.DynType} }

// admits says what the API server, with the chart's policy, has against a request: "" for nothing.
func admits(t *testing.T, policy admissionregistration.ValidatingAdmissionPolicy, request admission.Attributes) string {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(celenvironment.MustBaseEnvSet(celenvironment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	var variables []cel.NamedExpressionAccessor
	for _, v := range policy.Spec.Variables {
		variables = append(variables, expression{v.Name, v.Expression})
	}
	none := cel.OptionalVariableDeclarations{}
	compiler.CompileAndStoreVariables(variables, none, celenvironment.StoredExpressions)
	versioned := &admission.VersionedAttributes{
		Attributes: request, VersionedKind: request.GetKind(),
		VersionedObject: admission.NewLazyObject(request.GetObject()), VersionedOldObject: admission.NewLazyObject(request.GetOldObject()),
	}
	gvr, gvk := metav1.GroupVersionResource(request.GetResource()), metav1.GroupVersionKind(request.GetKind())
	holds := func(name, text string) bool {
		evaluator := compiler.CompileCondition([]cel.ExpressionAccessor{expression{name, text}}, none, celenvironment.StoredExpressions)
		for _, err := range evaluator.CompilationErrors() {
			t.Fatalf("%s is no CEL: %v", name, err)
		}
		found, _, err := evaluator.ForInput(t.Context(), versioned, cel.CreateAdmissionRequest(request, gvr, gvk), cel.OptionalVariableBindings{}, nil, apicel.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		if found[0].Error != nil {
			t.Logf("%s: %v", name, found[0].Error)
		}
		return found[0].Error == nil && found[0].EvalResult == types.True
	}
	for _, c := range policy.Spec.MatchConditions {
		if !holds(c.Name, c.Expression) {
			return ""
		}
	}
	for _, v := range policy.Spec.Validations {
		if !holds(v.Message, v.Expression) {
			return v.Message
		}
	}
	return ""
}

func TestAPodWritesLabelsOfItsOwnNodeAndNothingElse(t *testing.T) {
	var policy admissionregistration.ValidatingAdmissionPolicy
	object := render(t, valuesOf(t, `devicePlugin: {featureLabels: node}`)).one(t, "ValidatingAdmissionPolicy")
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy); err != nil {
		t.Fatal(err)
	}
	ours := &user.DefaultInfo{Name: "system:serviceaccount:gpumeter:gpumeter", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"a"}}}
	before := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"zone": "x", "nvidia.com/gpu.count": "8"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
	}
	for name, c := range map[string]struct {
		by     user.Info
		change func(n *corev1.Node)
		want   string
	}{
		"its labels": {ours, func(n *corev1.Node) {
			n.Labels["nvidia.com/gpu.count"], n.Labels["nvidia.com/mig.capable"] = "7", "true"
		}, ""},
		"takes one of its away": {ours, func(n *corev1.Node) { delete(n.Labels, "nvidia.com/gpu.count") }, ""},
		"who changed, too": {ours, func(n *corev1.Node) {
			n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "gpumeter-device-plugin"}}
		}, ""},
		"another label":              {ours, func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }, "gpumeter changes no labels of a node but nvidia.com/*"},
		"another value":              {ours, func(n *corev1.Node) { n.Labels["zone"] = "y" }, "gpumeter changes no labels of a node but nvidia.com/*"},
		"takes another's away":       {ours, func(n *corev1.Node) { delete(n.Labels, "zone") }, "gpumeter changes no labels of a node but nvidia.com/*"},
		"takes all away":             {ours, func(n *corev1.Node) { n.Labels = nil }, "gpumeter changes no labels of a node but nvidia.com/*"},
		"a taint":                    {ours, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}} }, "gpumeter changes nothing of a node but labels"},
		"an annotation":              {ours, func(n *corev1.Node) { n.Annotations = map[string]string{"x": "y"} }, "gpumeter changes nothing of a node but labels"},
		"a finalizer":                {ours, func(n *corev1.Node) { n.Finalizers = []string{"x/y"} }, "gpumeter changes nothing of a node but labels"},
		"a token of another node":    {&user.DefaultInfo{Name: ours.Name, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"b"}}}, func(n *corev1.Node) { n.Labels["nvidia.com/x"] = "" }, "gpumeter changes no node but the one that it runs on"},
		"a token of no node":         {&user.DefaultInfo{Name: ours.Name, Extra: map[string][]string{"x": {"a"}}}, func(n *corev1.Node) { n.Labels["nvidia.com/x"] = "" }, "gpumeter changes no node but the one that it runs on"},
		"a token of nothing":         {&user.DefaultInfo{Name: ours.Name}, func(n *corev1.Node) { n.Labels["nvidia.com/x"] = "" }, "gpumeter changes no node but the one that it runs on"},
		"somebody else is not meant": {&user.DefaultInfo{Name: "system:serviceaccount:gpus:gpumeter"}, func(n *corev1.Node) { n.Labels["zone"] = "y" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			after := before.DeepCopy()
			c.change(after)
			gvk := corev1.SchemeGroupVersion.WithKind("Node")
			request := admission.NewAttributesRecord(after, before.DeepCopy(), gvk, "", "a", corev1.SchemeGroupVersion.WithResource("nodes"), "", admission.Update, nil, false, c.by)
			if got := admits(t, policy, request); got != c.want {
				t.Errorf("the API server says %q, want %q", got, c.want)
			}
		})
	}
}
