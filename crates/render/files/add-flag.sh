flag=@FLAG@
if ! grep -q -e "$flag" "$script"; then
  sed "s|/usr/bin/cluster-kube-apiserver-operator render \\\\\$|&\n      $flag \\\\|" "$script" >"$script.landfall"
  if ! grep -q -e "$flag" "$script.landfall"; then
    rm -f "$script.landfall"
    echo "$script calls the renderer in a way that is not known: the API server will not use the tunnel" >&2
    exit 1
  fi
  chmod --reference="$script" "$script.landfall"
  mv "$script.landfall" "$script"
fi
