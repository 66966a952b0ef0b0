{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "gpumeter.plugin.args" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $p := .Values.devicePlugin -}}
{{- $args := list (printf "--address=:%v" $p.port) (printf "--source=%s" (ternary "stream" $p.source $facts.sim)) -}}
{{- if $facts.byLabel -}}
{{- $args = concat $args (list "--config-dir=/etc/gpumeter/configs" (printf "--node-label=%s" $p.config.nodeLabel)) -}}
{{- with $p.config.default -}}{{- $args = append $args (printf "--default-config=%s" .) -}}{{- end -}}
{{- range $p.config.fallbackStrategies -}}{{- $args = append $args (printf "--fallback-strategies=%s" .) -}}{{- end -}}
{{- else if or $p.config.name $p.config.map -}}
{{- $args = append $args (printf "--config-file=/etc/gpumeter/configs/%s" ($p.config.default | default (first $facts.pluginConfigs))) -}}
{{- end -}}
{{- $args = append $args (printf "--node-watch=%s" (ternary "off" $p.nodeWatch $facts.sim)) -}}
{{- if ne $p.featureLabels "off" -}}{{- $args = append $args (printf "--feature-labels=%s" $p.featureLabels) -}}{{- end -}}
{{- if eq $p.featureLabels "file" -}}
{{- $args = append $args "--feature-file=/etc/kubernetes/node-feature-discovery/features.d/gpumeter" -}}
{{- end -}}
{{- with $p.migStrategy -}}{{- $args = append $args (printf "--mig-strategy=%s" .) -}}{{- end -}}
{{- range $p.deviceListStrategy -}}{{- $args = append $args (printf "--device-list-strategy=%s" .) -}}{{- end -}}
{{- with $p.deviceIDStrategy -}}{{- $args = append $args (printf "--device-id-strategy=%s" .) -}}{{- end -}}
{{- if kindIs "bool" $p.passDeviceSpecs -}}{{- $args = append $args (printf "--pass-device-specs=%v" $p.passDeviceSpecs) -}}{{- end -}}
{{- if $facts.cdi -}}
{{- $args = append $args "--cdi-dir=/var/run/cdi" -}}
{{- with $p.cdi.hookPath -}}{{- $args = append $args (printf "--nvidia-cdi-hook-path=%s" .) -}}{{- end -}}
{{- end -}}
{{- with include "gpumeter.driverRoot" . -}}
{{- $args = concat $args (list (printf "--driver-root=%s" .) "--driver-root-ctr-path=/driver-root") -}}
{{- end -}}
{{- $args = append $args (printf "--mps-daemon=%s" (ternary "off" $p.mps.daemon $facts.sim)) -}}
{{- if or $facts.ownMPS $facts.externalMPS -}}
{{- $args = concat $args (list (printf "--mps-root=%s" $p.mps.root) "--mps-root-ctr-path=/mps") -}}
{{- end -}}
{{- $args = concat $args (list "--state-dir=/var/lib/gpumeter" "--health-socket=/run/gpumeter/health.sock") -}}
{{- toYaml (concat $args (include "gpumeter.commonArgs" . | fromJsonArray) $p.extraArgs) -}}
{{- end -}}

{{/* The driver's folder on the node, empty where it is not mounted. */}}
{{- define "gpumeter.driverRoot" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- if and .Values.devicePlugin.enabled (not $facts.sim) -}}
{{- .Values.driverRoot | default (ternary "/" "" $facts.cdi) -}}
{{- end -}}
{{- end -}}

{{- define "gpumeter.plugin.container" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $p := .Values.devicePlugin -}}
name: device-plugin
image: {{ include "gpumeter.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
command: [/usr/bin/gpumeter-device-plugin]
args:
  {{- include "gpumeter.plugin.args" . | nindent 2 }}
env:
  {{- include "gpumeter.nodeEnv" . | nindent 2 }}
  {{- if not $facts.sim }}
  {{- include "gpumeter.gpuEnv" . | nindent 2 }}
  {{- end }}
  {{- with $p.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
ports:
  - name: plugin-metrics
    containerPort: {{ $p.port }}
{{- include "gpumeter.probes" (dict "facts" $facts "port" "plugin-metrics" "live" "/healthz") }}
resources:
  {{- toYaml (ternary $p.mps.resources $p.resources $facts.ownMPS) | nindent 2 }}
securityContext:
  {{- $caps := list }}
  {{- if $facts.mig }}{{ $caps = list "SYS_ADMIN" }}{{ end }}
  {{- include "gpumeter.securityContext" (dict "facts" $facts "add" $caps "privileged" $facts.ownMPS "override" $p.securityContext) | nindent 2 }}
volumeMounts:
  - name: device-plugins
    mountPath: /var/lib/kubelet/device-plugins
  - name: ledger
    mountPath: /var/lib/gpumeter
  - name: run
    mountPath: /run/gpumeter
    readOnly: true
  {{- if or $p.config.name $p.config.map }}
  - name: plugin-configs
    mountPath: /etc/gpumeter/configs
    readOnly: true
  {{- end }}
  {{- if eq $p.featureLabels "file" }}
  - name: features
    mountPath: /etc/kubernetes/node-feature-discovery/features.d
  {{- end }}
  {{- if $facts.cdi }}
  - name: cdi
    mountPath: /var/run/cdi
  {{- end }}
  {{- if include "gpumeter.driverRoot" . }}
  - name: driver-root
    mountPath: /driver-root
    mountPropagation: HostToContainer
    readOnly: true
  {{- end }}
  {{- if or $facts.ownMPS $facts.externalMPS }}
  - name: mps-root
    mountPath: /mps
    readOnly: {{ $facts.externalMPS }}
  {{- end }}
  {{- if $facts.ownMPS }}
  - name: mps-shm
    mountPath: /dev/shm
  {{- end }}
  {{- with include "gpumeter.commonMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $p.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
