if @KNOWS@; then
  umask 077
  command=$(kubectl patch --local -f @API_SERVER@ --type=merge -p '{}' -o 'go-template={{range .spec.containers}}{{if eq .name "kube-apiserver"}}[{{range $at, $word := .command}}{{if ne $word "@FLAG@"}}{{if $at}},{{end}}{{printf "%q" $word}}{{end}}{{end}}]{{end}}{{end}}')
  case $command in
  '["kube-apiserver",'*) ;;
  *) echo '@API_SERVER@ is not as kubeadm makes it' >&2; exit 1 ;;
  esac
  kubectl patch --local -f @API_SERVER@ --type=strategic -o yaml \
    -p '{"spec":{"containers":[{"name":"kube-apiserver","command":'"$command"',"volumeMounts":@MOUNTS@}],"volumes":@VOLUMES@}}' \
    >/etc/kubernetes/kube-apiserver.yaml.new
  sync /etc/kubernetes/kube-apiserver.yaml.new
  mv /etc/kubernetes/kube-apiserver.yaml.new @API_SERVER@
fi
