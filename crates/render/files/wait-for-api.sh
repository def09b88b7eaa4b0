for i in $(seq 60); do @OLD@ || break; sleep 5; done
! @OLD@ || { echo 'the API server still uses the tunnel' >&2; exit 1; }
for i in $(seq 60); do @READY@ && break; sleep 5; done
@READY@ || { echo 'the API server does not answer' >&2; exit 1; }
