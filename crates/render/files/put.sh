# Whole or not at all. A name with a dot before it is none for the kubelet.
put() {
  local folder=${2%/*} name=${2##*/}
  mkdir -p "$folder"
  cp --preserve=mode "$1" "$folder/.$name.landfall"
  mv "$folder/.$name.landfall" "$2"
}
