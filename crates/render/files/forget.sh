if grep -qs -e @FLAG@ @BOOTKUBE@; then
  sed '\|@FLAG@|d' @BOOTKUBE@ >@BOOTKUBE@.landfall
  chmod --reference=@BOOTKUBE@ @BOOTKUBE@.landfall
  mv @BOOTKUBE@.landfall @BOOTKUBE@
fi
rm -f @LEFTOVERS@
