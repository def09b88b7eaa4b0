script=${LANDFALL_BOOTKUBE:-@BOOTKUBE@}
# A single node that bootstraps in place copies the files of this directory, and cannot copy a socket
if grep -qs '^BOOTSTRAP_INPLACE=true' "$script"; then
  echo 'this host bootstraps in place and becomes a node itself: it gets no tunnel'
  touch @TORN_DOWN@
  rm -f @POD@ @OVERRIDE@
  if systemctl cat @UNIT@ >/dev/null 2>&1; then timeout -k 10 30 systemctl disable --now @UNIT@ || :; fi
  rm -rf /etc/systemd/system/@UNIT@ /etc/systemd/system/@UNIT@.d @FILES@
  exit 0
fi
