# Read by every interactive bash.

case $- in *i*) ;; *) return ;; esac

shopt -s checkwinsize histappend
HISTCONTROL=ignoreboth
PS1='\u@\h:\w\$ '
case $TERM in xterm* | rxvt* | screen* | tmux*) PS1="\[\e]0;\u@\h: \w\a\]$PS1" ;; esac

alias ls='ls --color=auto'
alias grep='grep --color=auto'
alias ll='ls -alF'
