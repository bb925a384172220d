{{- define "backstay.labels" -}}
app.kubernetes.io/name: backstay
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "backstay.environment" -}}
- name: BACKSTAY_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secret }}
      key: {{ .Values.database.key }}
{{- if .Values.app }}
- name: BACKSTAY_APP
  value: {{ .Values.app | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "backstay.container" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  capabilities: { drop: [ALL] }
  runAsNonRoot: true
  runAsUser: 1000
{{- end }}
