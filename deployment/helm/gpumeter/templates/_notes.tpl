{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{/* A warning where no node has a label of the default affinity. */}}
{{- define "gpumeter.notes.nodes" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- if and .Values.clusterLookups (not $facts.sim) (not (kindIs "map" .Values.affinity)) -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- $gpus := 0 -}}
{{- range $nodes -}}
  {{- $labels := .metadata.labels | default dict -}}
  {{- if or (eq (index $labels "feature.node.kubernetes.io/pci-10de.present" | default "") "true") (eq (index $labels "feature.node.kubernetes.io/cpu-model.vendor_id" | default "") "NVIDIA") (eq (index $labels "nvidia.com/gpu.present" | default "") "true") -}}
    {{- $gpus = add1 $gpus -}}
  {{- end -}}
{{- end -}}
{{- if and $nodes (eq (int $gpus) 0) }}

WARNING: none of {{ len $nodes }} nodes has a label that tells of an NVIDIA GPU, so there will be no pods. Label GPU nodes, or choose nodes yourself (affinity, nodeSelector):

  kubectl label node NODE nvidia.com/gpu.present=true
{{- end }}
{{- end -}}
{{- end -}}

{{/* How the pages get into Prometheus, where the values do not say so. */}}
{{- define "gpumeter.notes.scraping" -}}
{{- $operator := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- $scraped := or .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- if and $operator (not $scraped) }}

Nothing is scraped yet. This cluster has the Prometheus operator:

  helm -n {{ .Release.Namespace }} upgrade {{ .Release.Name }} CHART --reset-then-reuse-values --set serviceMonitor.enabled=true --set prometheusRule.enabled=true
{{- else if not $scraped }}

Nothing is scraped yet, and this cluster has no Prometheus operator: have your Prometheus scrape the Service's endpoints with honor_labels: true
(docs/helm.md has the job).
{{- else if not $operator }}

WARNING: a monitor was asked for, and this cluster does not seem to have the Prometheus operator.
{{- end }}
{{- end -}}
