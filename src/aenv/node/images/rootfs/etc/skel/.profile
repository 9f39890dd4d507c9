# Yours: read by every login shell after /etc/profile. Keep it free of forks; every command passes here.

if [ -d "$HOME/.local/bin" ]; then PATH="$HOME/.local/bin:$PATH"; fi
case $- in
  *i*) if [ -n "${BASH_VERSION:-}" ] && [ -r "$HOME/.bashrc" ]; then . "$HOME/.bashrc"; fi ;;
esac
