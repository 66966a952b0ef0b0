{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "gpumeter.volumes" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $e := .Values.exporter -}}
{{- $p := .Values.devicePlugin -}}
{{- if $facts.sim }}
- name: ledger
  emptyDir: {}
- name: run
  emptyDir: {}
{{- else }}
- name: ledger
  hostPath:
    path: {{ .Values.ledger.hostPath | quote }}
    type: DirectoryOrCreate
- name: run
  hostPath:
    path: /run/gpumeter
    type: DirectoryOrCreate
{{- end }}
{{- if $e.enabled }}
# For "gpumeter report", which copies the ledger's totals.
- name: tmp
  emptyDir: {}
{{- end }}
{{- if $facts.host }}
{{- if $e.enabled }}
# The folders and not the sockets in them: a kubelet that starts anew makes new ones.
- name: pod-resources
  hostPath:
    path: {{ .Values.kubelet.podResources | quote }}
    type: Directory
{{- end }}
- name: device-plugins
  hostPath:
    path: {{ .Values.kubelet.devicePlugins | quote }}
    type: Directory
{{- end }}
{{- with include "gpumeter.hostEngineFolder" . }}
- name: host-engine
  hostPath:
    path: {{ . | quote }}
    type: Directory
{{- end }}
{{- if and $e.enabled (or $e.counters.inline $e.counters.configMap) }}
- name: counters
  configMap:
    name: {{ $e.counters.configMap | default (printf "%s-counters" (include "gpumeter.fullname" .)) | quote }}
{{- end }}
{{- if and $p.enabled (or $p.config.name $p.config.map) }}
- name: plugin-configs
  configMap:
    name: {{ $p.config.name | default (printf "%s-configs" (include "gpumeter.fullname" .)) | quote }}
{{- end }}
{{- if and $p.enabled (eq $p.featureLabels "file") }}
- name: features
  hostPath:
    path: {{ $p.featureFolder | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- if $facts.cdi }}
- name: cdi
  hostPath:
    path: {{ $p.cdi.dir | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- with include "gpumeter.driverRoot" . }}
- name: driver-root
  hostPath:
    path: {{ . | quote }}
    type: Directory
{{- end }}
{{- if or $facts.ownMPS $facts.externalMPS }}
- name: mps-root
  hostPath:
    path: {{ $p.mps.root | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- if $facts.ownMPS }}
- name: mps-shm
  hostPath:
    path: {{ printf "%s/shm" $p.mps.root | quote }}
    type: DirectoryOrCreate
{{- end }}
{{- if $facts.web }}
- name: web-config
  secret:
    secretName: {{ .Values.webConfig.existingSecret | default (printf "%s-web" (include "gpumeter.fullname" .)) | quote }}
{{- end }}
{{- with .Values.webConfig.tls.secretName }}
- name: tls
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- if .Values.xids }}
- name: xids
  configMap:
    name: {{ printf "%s-xids" (include "gpumeter.fullname" .) | quote }}
{{- end }}
{{- if and (eq .Values.gpuAccess "volume-mounts") (not $facts.sim) }}
- name: all-gpus
  hostPath:
    path: /dev/null
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
