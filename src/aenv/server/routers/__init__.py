"""One module per noun: thin maps from routes onto control's services."""
