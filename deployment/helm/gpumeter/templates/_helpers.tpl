{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "gpumeter.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* The objects' name. 50 of 63 characters: what is made of it has longer ones. */}}
{{- define "gpumeter.fullname" -}}
{{- $name := include "gpumeter.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gpumeter.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpumeter.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "gpumeter.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "gpumeter.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of (the chart, further labels that go before commonLabels). */}}
{{- define "gpumeter.labelsWith" -}}
{{- $own := include "gpumeter.labels" (index . 0) | fromYaml -}}
{{- toYaml (mergeOverwrite $own (index . 1)) -}}
{{- end -}}

{{- define "gpumeter.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "gpumeter.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "gpumeter.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/*
What the values come to, as JSON: questions that more than one template asks.
  sim            a pretend node
  host           the node's folders and GPUs are used; not so by a pretend node without the device plugin
  pluginConfigs  names of the device plugin's configs in config.map
  byLabel        the node's label chooses the config
  mig cdi        MIG devices, CDI specs
  ownMPS         the plugin runs MPS daemons
  pods nodes     what the API server is asked for
  labels         the plugin writes labels onto its node
  token          the API server is asked for anything at all
  web tls login  a web config is there, with TLS, with passwords or client certificates
*/}}
{{- define "gpumeter.facts" -}}
{{- $v := .Values -}}
{{- $plugin := $v.devicePlugin -}}
{{- $sim := and $v.exporter.enabled (eq $v.exporter.source "sim") -}}
{{- $mig := has $plugin.migStrategy (list "single" "mixed") -}}
{{- $cdi := or (has "cdi-annotations" $plugin.deviceListStrategy) (has "cdi-cri" $plugin.deviceListStrategy) -}}
{{- $mps := false -}}
{{- range $name, $config := $plugin.config.map -}}
  {{- $parsed := include "gpumeter.parsedConfig" (list $name $config) | fromJson -}}
  {{- $flags := $parsed.flags | default dict -}}
  {{- $strategy := ($flags.plugin | default dict).deviceListStrategy | default list -}}
  {{- if not (kindIs "slice" $strategy) -}}{{- $strategy = splitList "," (toString $strategy) -}}{{- end -}}
  {{- range $strategy -}}{{- if hasPrefix "cdi-" (trim (toString .)) -}}{{- $cdi = true -}}{{- end -}}{{- end -}}
  {{- if has $flags.migStrategy (list "single" "mixed") -}}{{- $mig = true -}}{{- end -}}
  {{- if ($parsed.sharing | default dict).mps -}}{{- $mps = true -}}{{- end -}}
{{- end -}}
{{- if kindIs "bool" $v.features.mig -}}{{- $mig = $v.features.mig -}}{{- end -}}
{{- if kindIs "bool" $plugin.cdi.enabled -}}{{- $cdi = $plugin.cdi.enabled -}}{{- end -}}
{{- $byLabel := or (ne $plugin.config.name "") (gt (len $plugin.config.map) 1) -}}
{{- if kindIs "bool" $plugin.config.followNodeLabel -}}{{- $byLabel = $plugin.config.followNodeLabel -}}{{- end -}}
{{- $byLabel = and $plugin.enabled $byLabel (or (not (empty $plugin.config.name)) (not (empty $plugin.config.map))) -}}
{{- $pods := and $v.exporter.enabled (ne $v.exporter.podWatch "off") (or (not $sim) $plugin.enabled) -}}
{{- $watches := and $plugin.enabled (not $sim) (ne $plugin.nodeWatch "off") -}}
{{- $labels := and $plugin.enabled (eq $plugin.featureLabels "node") -}}
{{- $web := or $v.webConfig.existingSecret $v.webConfig.tls.secretName $v.webConfig.basicAuth.users | empty | not -}}
{{- $tls := ternary $v.webConfig.existingSecretHasTLS (ne $v.webConfig.tls.secretName "") (ne $v.webConfig.existingSecret "") -}}
{{- $login := or $v.webConfig.existingSecret $v.webConfig.basicAuth.users (ne $v.webConfig.tls.clientAuth "NoClientCert") | empty | not -}}
{{- dict
  "sim" $sim
  "host" (or (not $sim) $plugin.enabled)
  "pluginConfigs" (keys $plugin.config.map | sortAlpha)
  "byLabel" $byLabel
  "mig" (and $mig (not $sim))
  "cdi" (and $cdi $plugin.enabled (not $sim))
  "usesMPS" $mps
  "ownMPS" (and $plugin.enabled (eq $plugin.mps.daemon "own") (not $sim))
  "externalMPS" (and $plugin.enabled (eq $plugin.mps.daemon "external") (not $sim))
  "pods" $pods
  "nodes" (or $pods $byLabel $watches)
  "labels" $labels
  "token" (or $pods $byLabel $watches $labels)
  "web" $web
  "tls" (and $web $tls)
  "login" (and $web $login)
  | toJson -}}
{{- end -}}

{{/* A config of the device plugin, as JSON, of (name, text or keys). */}}
{{- define "gpumeter.parsedConfig" -}}
{{- $name := index . 0 -}}
{{- $config := index . 1 -}}
{{- if kindIs "map" $config -}}
{{- toJson $config -}}
{{- else -}}
{{- $parsed := fromYaml (toString $config) -}}
{{- if and (hasKey $parsed "Error") (not (hasKey $parsed "version")) -}}
{{- fail (printf "devicePlugin.config.map.%s is no YAML: %s" $name $parsed.Error) -}}
{{- end -}}
{{- toJson $parsed -}}
{{- end -}}
{{- end -}}

{{/* Mistakes that no schema can see. Each says what to do. */}}
{{- define "gpumeter.guards" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $plugin := .Values.devicePlugin -}}
{{- if not (or .Values.exporter.enabled $plugin.enabled) -}}
{{- fail "exporter.enabled and devicePlugin.enabled are both false: there is nothing to run" -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "gpumeter.fullname" .)) -}}
{{- fail (printf "%q can be no Service's name, which begins with a letter: give another one by fullnameOverride" (include "gpumeter.fullname" .)) -}}
{{- end -}}
{{- if eq .Values.exporter.port $plugin.port -}}
{{- fail (printf "exporter.port and devicePlugin.port are both %v: give one of them another" .Values.exporter.port) -}}
{{- end -}}
{{- if and $plugin.config.map $plugin.config.name -}}
{{- fail "devicePlugin.config.map and devicePlugin.config.name are both given: leave one out" -}}
{{- end -}}
{{- if and $plugin.config.default $plugin.config.map (not (hasKey $plugin.config.map $plugin.config.default)) -}}
{{- fail (printf "devicePlugin.config.default names %q, which is not in devicePlugin.config.map: %s" $plugin.config.default (join ", " $facts.pluginConfigs)) -}}
{{- end -}}
{{- if and (not $facts.byLabel) (gt (len $plugin.config.map) 1) (not $plugin.config.default) -}}
{{- fail "devicePlugin.config.followNodeLabel is false and there are several configs: name one by devicePlugin.config.default" -}}
{{- end -}}
{{- if and (not $facts.byLabel) $plugin.enabled $plugin.config.name (not $plugin.config.default) -}}
{{- fail "devicePlugin.config.followNodeLabel is false: name the key of the ConfigMap by devicePlugin.config.default" -}}
{{- end -}}
{{- if and $plugin.enabled $facts.usesMPS (eq $plugin.mps.daemon "off") (not $facts.sim) -}}
{{- fail "a config in devicePlugin.config.map has sharing.mps, and devicePlugin.mps.daemon is off: say own (the plugin runs the daemons, privileged) or external (somebody else does)" -}}
{{- end -}}
{{- if and .Values.exporter.counters.inline .Values.exporter.counters.configMap -}}
{{- fail "exporter.counters.inline and exporter.counters.configMap are both given: leave one out" -}}
{{- end -}}
{{- if and .Values.webConfig.existingSecret (or .Values.webConfig.tls.secretName .Values.webConfig.basicAuth.users) -}}
{{- fail "webConfig.existingSecret is a whole web config: leave webConfig.tls.secretName and webConfig.basicAuth.users out" -}}
{{- end -}}
{{- if and (ne .Values.webConfig.tls.clientAuth "NoClientCert") (not .Values.webConfig.tls.secretName) -}}
{{- fail "webConfig.tls.clientAuth needs webConfig.tls.secretName" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- fail "serviceMonitor.enabled and podMonitor.enabled would scrape everything twice: leave one out" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not .Values.service.enabled) -}}
{{- fail "serviceMonitor.enabled needs service.enabled; podMonitor.enabled needs no Service" -}}
{{- end -}}
{{- $scraped := or .Values.serviceMonitor.enabled .Values.podMonitor.enabled -}}
{{- if and $scraped $facts.tls .Values.webConfig.existingSecret (not .Values.monitor.tlsConfig) -}}
{{- fail "webConfig.existingSecret has TLS, and Prometheus does not know whose certificate to believe: say it by monitor.tlsConfig (or existingSecretHasTLS=false)" -}}
{{- end -}}
{{- if and $scraped (ne .Values.webConfig.tls.clientAuth "NoClientCert") (not .Values.monitor.tlsConfig) -}}
{{- fail "webConfig.tls.clientAuth wants a certificate, and Prometheus has none: name its secrets by monitor.tlsConfig (ca, cert, keySecret)" -}}
{{- end -}}
{{- if and $scraped .Values.webConfig.basicAuth.users (not .Values.monitor.basicAuth) -}}
{{- fail "webConfig.basicAuth.users wants a password, and Prometheus has none: name its secrets by monitor.basicAuth" -}}
{{- end -}}
{{- if and $facts.token .Values.rbac.create (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false and none is named: every pod of the namespace would get the rights that these need. Give serviceAccount.name, or rbac.create=false" -}}
{{- end -}}
{{- if and $plugin.enabled .Values.clusterLookups -}}
{{- include "gpumeter.otherPlugin" . -}}
{{- end -}}
{{- end -}}

{{/* Fails where another device plugin for NVIDIA's GPUs has pods: NVIDIA's, GKE's, or one of ours from another release. */}}
{{- define "gpumeter.otherPlugin" -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
  {{- $ours := and (eq .metadata.namespace $.Release.Namespace) (eq .metadata.name (include "gpumeter.fullname" $)) -}}
  {{- $pods := dig "status" "desiredNumberScheduled" 0 . | int -}}
  {{- if and (not $ours) (gt $pods 0) -}}
    {{- $set := . -}}
    {{- range .spec.template.spec.containers -}}
      {{- $image := .image | default "" -}}
      {{- $gpumeter := and (regexMatch "(^|/)gpumeter([:@]|$)" $image) (contains "device-plugin" .name) -}}
      {{- if or $gpumeter (regexMatch "(^|/)(k8s-device-plugin|nvidia-gpu-device-plugin)([:@]|$)" $image) -}}
        {{- fail (printf "the DaemonSet %s/%s runs another device plugin (%s) on %d nodes, and the kubelet takes the last one that registers. Remove it first, or keep it and set devicePlugin.enabled=false. Where the two run on different nodes, clusterLookups=false passes over this." $set.metadata.namespace $set.metadata.name .image $pods) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* The default affinity, as NVIDIA's device plugin has it: any of the labels that tell of a GPU. */}}
{{- define "gpumeter.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - key: feature.node.kubernetes.io/pci-10de.present
            operator: In
            values: ["true"]
      - matchExpressions:
          - key: feature.node.kubernetes.io/cpu-model.vendor_id
            operator: In
            values: [NVIDIA]
      - matchExpressions:
          - key: nvidia.com/gpu.present
            operator: In
            values: ["true"]
{{- end -}}

{{/* How the NVIDIA container runtime is asked for the GPUs of the node. */}}
{{- define "gpumeter.gpuEnv" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ ternary "/var/run/nvidia-container-devices" "all" (eq .Values.gpuAccess "volume-mounts") }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: compute,utility
{{- if $facts.mig }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- end -}}

{{- define "gpumeter.nodeEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end -}}

{{/* Name of objects without a namespace, so that releases in several namespaces do not meet. */}}
{{- define "gpumeter.clusterName" -}}
{{- $name := include "gpumeter.fullname" . -}}
{{- ternary $name (printf "%s-%s" .Release.Namespace $name) (eq $name .Release.Namespace) -}}
{{- end -}}
