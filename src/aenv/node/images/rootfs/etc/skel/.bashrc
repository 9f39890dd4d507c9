# Yours: read by every interactive bash after /etc/bash.bashrc.
