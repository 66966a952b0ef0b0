{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "gpumeter.exporter.args" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $e := .Values.exporter -}}
{{- $args := list (printf "--address=:%v" $e.port) (printf "--source=%s" $e.source) -}}
{{- if $facts.sim -}}
{{- $args = concat $args (list (printf "--scenario=%s" $e.sim.scenario) (printf "--speed=%v" $e.sim.speed)) -}}
{{- end -}}
{{- with $e.hostEngine -}}{{- $args = append $args (printf "--remote-hostengine-info=%s" .) -}}{{- end -}}
{{- $args = concat $args (list (printf "--collect-interval=%s" $e.collectInterval) "--kubernetes" (printf "--kubernetes-pod-watch=%s" (ternary $e.podWatch "off" $facts.pods))) -}}
{{- if and $facts.sim $facts.host -}}
{{- $args = append $args "--pod-resources-kubelet-socket=/var/lib/kubelet/pod-resources/kubelet.sock" -}}
{{- end -}}
{{- if $e.podUID -}}{{- $args = append $args "--kubernetes-enable-pod-uid" -}}{{- end -}}
{{- if $e.virtualGPUs -}}{{- $args = append $args "--kubernetes-virtual-gpus" -}}{{- end -}}
{{- if $e.counters.inline -}}{{- $args = append $args "--collectors=/etc/gpumeter/counters/counters.csv" -}}
{{- else if $e.counters.configMap -}}{{- $args = append $args (printf "--collectors=/etc/gpumeter/counters/%s" $e.counters.key) -}}
{{- else -}}{{- $args = append $args (printf "--collectors=/etc/dcgm-exporter/%s" $e.counters.file) -}}{{- end -}}
{{- $ledger := .Values.ledger -}}
{{- $args = concat $args (list "--ledger-dir=/var/lib/gpumeter" (printf "--ledger-max-size=%s" $ledger.maxSize) (printf "--ledger-retention=%s" $ledger.retention)) -}}
{{- $args = append $args "--health-socket=/run/gpumeter/health.sock" -}}
{{- with .Values.clusterName -}}{{- $args = append $args (printf "--cluster-name=%s" .) -}}{{- end -}}
{{- toYaml (concat $args (include "gpumeter.commonArgs" . | fromJsonArray) $e.extraArgs) -}}
{{- end -}}

{{/* Flags that both programs have, as JSON. */}}
{{- define "gpumeter.commonArgs" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $args := list -}}
{{- if .Values.xids -}}{{- $args = append $args "--xid-file=/etc/gpumeter/xids/xid.yaml" -}}{{- end -}}
{{- if $facts.web -}}{{- $args = append $args "--web-config-file=/etc/gpumeter/web/web-config.yml" -}}{{- end -}}
{{- $args = append $args (printf "--log-format=%s" .Values.logFormat) -}}
{{- if .Values.debug -}}{{- $args = append $args "--debug" -}}{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{- define "gpumeter.exporter.container" -}}
{{- $facts := include "gpumeter.facts" . | fromJson -}}
{{- $e := .Values.exporter -}}
name: exporter
image: {{ include "gpumeter.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
command: [/usr/bin/gpumeter-exporter]
args:
  {{- include "gpumeter.exporter.args" . | nindent 2 }}
env:
  {{- include "gpumeter.nodeEnv" . | nindent 2 }}
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  {{- if contains "$(NODE_IP)" $e.hostEngine }}
  - name: NODE_IP
    valueFrom:
      fieldRef:
        fieldPath: status.hostIP
  {{- end }}
  {{- if not $facts.sim }}
  {{- include "gpumeter.gpuEnv" . | nindent 2 }}
  {{- end }}
  {{- with $e.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
ports:
  - name: metrics
    containerPort: {{ $e.port }}
{{- include "gpumeter.probes" (dict "facts" $facts "port" "metrics" "live" "/livez") }}
resources:
  {{- toYaml $e.resources | nindent 2 }}
securityContext:
  {{- $caps := list }}
  {{- if and (not $facts.sim) (or .Values.features.profiling $facts.mig) }}{{ $caps = list "SYS_ADMIN" }}{{ end }}
  {{- include "gpumeter.securityContext" (dict "facts" $facts "add" $caps "privileged" false "override" $e.securityContext) | nindent 2 }}
volumeMounts:
  - name: ledger
    mountPath: /var/lib/gpumeter
  - name: run
    mountPath: /run/gpumeter
  {{- if $facts.host }}
  - name: pod-resources
    mountPath: /var/lib/kubelet/pod-resources
    readOnly: true
  - name: device-plugins
    mountPath: /var/lib/kubelet/device-plugins
    readOnly: true
  {{- end }}
  - name: tmp
    mountPath: /tmp
  {{- with include "gpumeter.hostEngineFolder" . }}
  - name: host-engine
    mountPath: {{ . | quote }}
    readOnly: true
  {{- end }}
  {{- if or $e.counters.inline $e.counters.configMap }}
  - name: counters
    mountPath: /etc/gpumeter/counters
    readOnly: true
  {{- end }}
  {{- with include "gpumeter.commonMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $e.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Folder of a host engine's unix socket, empty where it has none. */}}
{{- define "gpumeter.hostEngineFolder" -}}
{{- $address := trimPrefix "unix://" .Values.exporter.hostEngine -}}
{{- if and (hasPrefix "/" $address) .Values.exporter.enabled -}}
{{- dir $address -}}
{{- end -}}
{{- end -}}

{{/* Mounts of both containers. */}}
{{- define "gpumeter.commonMounts" -}}
{{- $facts := include "gpumeter.facts" . | fromJson }}
{{- if $facts.web }}
- name: web-config
  mountPath: /etc/gpumeter/web
  readOnly: true
{{- end }}
{{- if .Values.webConfig.tls.secretName }}
- name: tls
  mountPath: /etc/gpumeter/tls
  readOnly: true
{{- end }}
{{- if .Values.xids }}
- name: xids
  mountPath: /etc/gpumeter/xids
  readOnly: true
{{- end }}
{{- if and (eq .Values.gpuAccess "volume-mounts") (not $facts.sim) }}
- name: all-gpus
  mountPath: /var/run/nvidia-container-devices/all
  readOnly: true
{{- end }}
{{- end -}}

{{/*
Probes of a program. None of them fails for a GPU that hangs or is lost: live is about the loop, and what is not ready is still scraped.
Where a password or a client's certificate is wanted, the kubelet has none, and the port has to do.
*/}}
{{- define "gpumeter.probes" -}}
{{- $probes := dict "startupProbe" (list .live 5 60 5) "livenessProbe" (list .live 30 4 10) "readinessProbe" (list "/readyz" 10 3 5) -}}
{{- range $kind, $p := $probes }}
{{ $kind }}:
  {{- if $.facts.login }}
  tcpSocket:
    port: {{ $.port }}
  {{- else }}
  httpGet:
    path: {{ index $p 0 | quote }}
    port: {{ $.port }}
    {{- if $.facts.tls }}
    scheme: HTTPS
    {{- end }}
  {{- end }}
  periodSeconds: {{ index $p 1 }}
  failureThreshold: {{ index $p 2 }}
  timeoutSeconds: {{ index $p 3 }}
{{- end }}
{{- end -}}

{{/*
The security context of a container. It is root where the node's folders are used: the kubelet's sockets are open to root only. Root has no
capability but those in add. A key of override replaces ours, also by false; below a mapping, each key by itself.
*/}}
{{- define "gpumeter.securityContext" -}}
{{- $root := .facts.host -}}
{{- $context := dict "readOnlyRootFilesystem" true "runAsUser" (ternary 0 65532 $root) "runAsGroup" (ternary 0 65532 $root) "runAsNonRoot" (not $root) -}}
{{- if or .privileged .override.privileged -}}
{{- $_ := set $context "privileged" true -}}
{{- else -}}
{{- $caps := dict "drop" (list "ALL") -}}
{{- if .add -}}{{- $_ := set $caps "add" .add -}}{{- end -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- $_ := set $context "capabilities" $caps -}}
{{- $_ := set $context "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- end -}}
{{- range $key, $value := .override -}}
{{- if and (kindIs "map" $value) (hasKey $context $key) -}}
{{- $value = mergeOverwrite (deepCopy (get $context $key)) $value -}}
{{- end -}}
{{- $_ := set $context $key $value -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}
